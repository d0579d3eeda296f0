//! Masked language modeling: predicts hidden tokens, or whole words, from those around them.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{LabeledBatch, Masking, Tokens};
use crate::{
    Collator, DataError, Drawn, Encoder, Encoding, Fingerprint, IGNORE, Input, Keeping, Padding, Record,
    samples::mix, token_batch::signed,
};

/// Hides some tokens of texts and uses them as labels: for BERT and similar models.
///
/// The tokens to predict and their replacements are computed from the seed, the epoch, the sample's index and the
/// position in the sample. Each epoch therefore masks differently, and neither the number of workers nor the batch size
/// changes the result.
///
/// Added tokens, padding, and special tokens within the text are never predicted. The unknown token stands for text, so
/// it may be. A random replacement is any token except the special ones. A record without a token that could be
/// predicted yields no sample; a sample in which no token happens to be selected is kept.
///
/// With whole words, words are selected at random, and then the replacement of each of their tokens. A word ends where
/// the tokenizer's pre-tokenizer says so, and at white space.
///
/// # Example
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use firebrick_datasets::collators::{MaskedLm, Masking};
/// use firebrick_datasets::{Collator, Drawn, Encoder, Record, RecordPlace, Tokenizer, Value};
///
/// let tokenizer = Arc::new(Tokenizer::from_file("tests/golden/wordpiece/tokenizer.json")?);
/// let masking = Masking::default().probability(1.0)?.replaced(1.0, 0.0)?;
/// let task = MaskedLm::new(Encoder::new(tokenizer), masking).pad_id(0).mask_id(4);
///
/// let place = RecordPlace { file: Path::new("text.jsonl").into(), line: 1 };
/// let record = Record::new(place, vec![("text".into(), Value::Text("the river".into()))]);
/// let sample = Arc::new(task.encode(&record)?.remove(0));
/// let ids = &sample.tokens.ids;
/// let batch = task.collate(&[Drawn { epoch: 0, index: 0, sample: sample.clone() }])?;
/// // [CLS] [MASK] [MASK] [SEP]
/// assert_eq!(batch.inputs().host_ids(), [2, 4, 4, 3]);
/// assert_eq!(batch.host_labels(), [-100, ids[1] as i32, ids[2] as i32, -100]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct MaskedLm {
    encoder: Encoder,
    masking: Masking,
    field: String,
    padding: Padding,
    pad_id: Option<u32>,
    mask_id: Option<u32>,
}

/// Tokens, and the word that each belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskableTokens {
    /// The tokens.
    pub tokens: Tokens,
    /// The number of each token's word; `None` if the token is never predicted.
    pub words: Vec<Option<u32>>,
}

impl MaskedLm {
    /// Reads the field `text`.
    pub fn new(encoder: Encoder, masking: Masking) -> Self {
        let (padding, pad_id, mask_id) = (Padding::default(), None, None);
        Self { encoder, masking, field: "text".to_owned(), padding, pad_id, mask_id }
    }

    /// Sets the field of the text. Default: `text`.
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    /// Sets how rows are padded. Default: on the right, to the longest row.
    pub fn padding(mut self, padding: Padding) -> Self {
        self.padding = padding;
        self
    }

    /// Sets the padding token. Default: the tokenizer's.
    pub fn pad_id(mut self, id: u32) -> Self {
        self.pad_id = Some(id);
        self
    }

    /// Sets the mask token. Default: the tokenizer's.
    pub fn mask_id(mut self, id: u32) -> Self {
        self.mask_id = Some(id);
        self
    }

    fn pad(&self) -> Result<u32, DataError> {
        super::pad(self.pad_id, self.encoder.tokenizer())
    }

    fn mask(&self) -> Result<u32, DataError> {
        let special = self.encoder.tokenizer().special();
        super::role(self.mask_id, special.mask, "mask", "mask_id")
    }

    /// Returns the tokens that are never a random replacement.
    fn special(&self) -> BTreeSet<u32> {
        let special = self.encoder.tokenizer().special();
        special.all.iter().copied().chain(self.pad_id).chain(self.mask_id).collect()
    }

    /// Returns the tokens that are never predicted, wherever they occur.
    fn never(&self) -> BTreeSet<u32> {
        let special = self.encoder.tokenizer().special();
        let mut never = self.special();
        let others = [special.pad, special.bos, special.eos, special.cls, special.sep, special.mask];
        let others = others.into_iter().chain([self.pad_id, self.mask_id]);
        // GPT-2 uses its end token as the unknown token too, though it can encode any text.
        if let Some(unknown) = special.unk.filter(|&unknown| !others.flatten().any(|id| id == unknown)) {
            never.remove(&unknown);
        }
        never
    }
}

impl Collator for MaskedLm {
    type Sample = MaskableTokens;
    type Batch = LabeledBatch;

    fn encode(&self, record: &Record) -> Result<Vec<MaskableTokens>, DataError> {
        self.pad()?;
        self.mask()?;
        let text = record.text(&self.field)?;
        let never = self.never();
        let encodings = self.encoder.encode(Input::Text(text), None)?;
        let samples = encodings.into_iter().map(|encoding| MaskableTokens {
            words: word_of_each_token(&encoding, text, |id| never.contains(&id)),
            tokens: Tokens::of(encoding, self.encoder.tokenizer()),
        });
        Ok(samples.filter(|sample| sample.words.iter().any(Option::is_some)).collect())
    }

    fn length(&self, sample: &MaskableTokens) -> usize {
        sample.tokens.len()
    }

    fn padded(&self, samples: &[Arc<MaskableTokens>]) -> usize {
        self.padding.area(samples.iter().map(|sample| sample.tokens.len()))
    }

    fn collate(&self, samples: &[Drawn<MaskableTokens>]) -> Result<LabeledBatch, DataError> {
        let replacement = Replacement {
            masking: self.masking,
            mask_id: self.mask()?,
            special: self.special(),
            vocab_size: self.encoder.tokenizer().vocab_size(),
        };
        let rows = samples.iter().map(|drawn| replacement.apply(drawn)).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<_> = rows.iter().map(|(tokens, labels)| (tokens, &**labels)).collect();
        LabeledBatch::new(&rows, &self.padding, self.pad()?)
    }

    fn keeping(&self) -> Option<Keeping<MaskableTokens>> {
        // Tokens are masked when they are drawn.
        let Self { encoder, masking: _, field, padding: _, pad_id, mask_id } = self;
        let settings = ("MaskedLm", encoder.settings()?, field, pad_id, mask_id);
        Some(Keeping::new(Fingerprint::of_settings(&settings)?))
    }
}

/// Replaces the predicted tokens.
struct Replacement {
    masking: Masking,
    mask_id: u32,
    special: BTreeSet<u32>,
    vocab_size: usize,
}

impl Replacement {
    /// Returns the tokens as the model sees them, and the labels.
    fn apply(&self, drawn: &Drawn<MaskableTokens>) -> Result<(Tokens, Vec<i32>), DataError> {
        let Masking { probability, masked, random, whole_words, seed } = self.masking;
        let chance = Counter::new(seed, drawn.epoch, drawn.index);
        let mut tokens = drawn.sample.tokens.clone();
        let mut labels = vec![IGNORE; tokens.len()];
        let places = tokens.ids.iter_mut().zip(&mut labels).zip(&drawn.sample.words);
        for (position, ((id, label), &word)) in (0_u64..).zip(places) {
            let Some(word) = word else { continue };
            let picked = if whole_words { u64::from(word) } else { position };
            if chance.uniform(picked, 0) >= probability {
                continue;
            }
            *label = signed(*id)?;
            let fate = chance.uniform(position, 1);
            if fate < masked {
                *id = self.mask_id;
            } else if fate < masked + random {
                *id = self.random(chance, position).unwrap_or(*id);
            }
        }
        Ok((tokens, labels))
    }

    /// Returns a random token that is not special, or `None` if there is none.
    fn random(&self, chance: Counter, position: u64) -> Option<u32> {
        let special = self.special.iter().filter(|&&id| (id as usize) < self.vocab_size);
        let ordinary = self.vocab_size.saturating_sub(special.clone().count());
        // Maps a number to that ordinary token: each special token up to it shifts it by one.
        let drawn = chance.below(ordinary as u64, position, 2)?;
        let id = special.fold(drawn, |id, &special| id + u64::from(u64::from(special) <= id));
        u32::try_from(id).ok()
    }
}

/// Random numbers as a pure function of a seed, an epoch, a sample and a position in it.
///
/// It applies SplitMix64's finaliser to a counter (see the shuffle in `samples/order.rs`): every thread and every batch
/// gets the same number. Runs depend on these numbers to be reproducible, so they stay the same in every release.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter(u64);

/// Separates these numbers from the keys of the shuffle, which use the same seed.
const MASKING: u64 = 0x6D61_736B_696E_6731;

impl Counter {
    /// Creates the numbers of one sample.
    pub(super) fn new(seed: u64, epoch: u64, index: u64) -> Self {
        let run = mix(seed ^ MASKING);
        Self(mix(mix(run.wrapping_add(epoch)).wrapping_add(index)))
    }

    /// Returns the number at a position. Each `draw` of a position is an independent number.
    fn bits(self, position: u64, draw: u64) -> u64 {
        mix(mix(self.0.wrapping_add(position)).wrapping_add(draw))
    }

    /// Returns a number in [0, 1) with 53 random bits.
    pub(super) fn uniform(self, position: u64, draw: u64) -> f64 {
        (self.bits(position, draw) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a whole number below `end`, or `None` if `end` is 0.
    pub(super) fn below(self, end: u64, position: u64, draw: u64) -> Option<u64> {
        // Truncating the product has a bias of at most end / 2⁶⁴.
        let product = u128::from(self.bits(position, draw)) * u128::from(end);
        (end > 0).then_some((product >> 64) as u64)
    }
}

/// Returns the number of each token's word in the text, from 0, or `None` for added tokens and for ids that `apart`
/// excludes.
///
/// The tokenizer's own words are not enough: a SentencePiece tokenizer may treat a whole text as one word. A word
/// therefore ends where the tokenizer says so, and at white space between two tokens or at the start of the second,
/// where SentencePiece and some byte-level tokenizers put it. The tokens of one character, which share its bytes, stay
/// together.
///
/// In a script without spaces, SentencePiece's words are whole clauses.
pub(super) fn word_of_each_token(
    encoding: &Encoding,
    text: &str,
    apart: impl Fn(u32) -> bool,
) -> Vec<Option<u32>> {
    let mut words = Vec::with_capacity(encoding.len());
    let mut count = 0;
    // The tokenizer's word and the end offset of the previous token.
    let mut before: Option<(Option<u32>, usize)> = None;
    for (token, &id) in encoding.ids.iter().enumerate() {
        let special = encoding.special.get(token).copied().unwrap_or(false);
        if special || apart(id) {
            before = None;
            words.push(None);
            continue;
        }
        let word = encoding.words.get(token).copied().flatten();
        let (start, end) = encoding.offsets.get(token).copied().unwrap_or_default();
        let (start, end) = (start as usize, end as usize);
        let continues = before.is_some_and(|(word_before, end_before)| {
            let gap = text.get(end_before..start).unwrap_or_default();
            let own = text.get(start.max(end_before)..end).unwrap_or_default();
            word_before == word && !gap.contains(char::is_whitespace) && !own.starts_with(char::is_whitespace)
        });
        count += u32::from(!continues);
        before = Some((word, end));
        words.push(count.checked_sub(1));
    }
    words
}

#[cfg(test)]
#[path = "masked_lm_tests.rs"]
mod tests;
