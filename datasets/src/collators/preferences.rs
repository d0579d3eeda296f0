//! Preferences: a better and a worse answer to each prompt.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::preference_record::Pair;
use super::{CausalSample, Dpo, PreferenceBatch, PreferenceFields, PreferenceSample};
use crate::{
    ChatError, ChatTemplate, Collator, Conversation, DataError, Drawn, Encoder, Fingerprint, Input, Keeping,
    Message, Padding, Record,
};

/// The end of a row that is kept if the row is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum KeptEnd {
    /// The start: the answer is cut. A pair whose prompt fills a row is left out.
    #[default]
    Start,
    /// The end: the prompt is cut.
    End,
}

/// Prepares pairs of answers for a language model that learns to prefer one of them.
///
/// A record is a prompt with a chosen and a rejected answer: see [`PreferenceFields`]. Ids are those of trl's
/// `DPOTrainer`: a prompt and its answer are tokenized as one text, and what counts are the tokens after those that the
/// prompt, tokenized alone, shares with both. Texts get an end token; conversations are rendered by the tokenizer's chat
/// template, which ends them. A pair of two equal answers is a malformed record.
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use firebrick_datasets::collators::{Dpo, Preferences};
/// use firebrick_datasets::{Collator, Drawn, Encoder, Record, RecordPlace, Tokenizer, Value};
///
/// let encoder = Encoder::new(Arc::new(Tokenizer::characters("2+3=56.")?));
/// let pairs = Preferences::new(encoder, Dpo::default())?.end_id(1);
///
/// let text = |text: &str| Value::Text(text.to_owned());
/// let record = Record::new(
///     RecordPlace { file: Path::new("sums.jsonl").into(), line: 1 },
///     vec![("prompt".into(), text("2+3=")), ("chosen".into(), text("5")), ("rejected".into(), text("6"))],
/// );
/// let sample = Arc::new(pairs.encode(&record)?.remove(0));
/// let batch = pairs.collate(&[Drawn { epoch: 0, index: 0, sample }])?;
/// assert_eq!(batch.rows().host_ids(), [2, 0, 3, 6, 4, 1, 2, 0, 3, 6, 5, 1]);
/// assert_eq!(batch.rows().host_labels()[..6], [-100, -100, -100, -100, 4, 1]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Preferences {
    encoder: Encoder,
    dpo: Dpo,
    fields: PreferenceFields,
    template: Option<ChatTemplate>,
    kept: KeptEnd,
    end: bool,
    end_id: Option<u32>,
    padding: Padding,
    pad_id: Option<u32>,
}

impl Preferences {
    /// Reads the default fields, and ends texts with the tokenizer's end token, if it has one.
    ///
    /// # Errors
    ///
    /// A setting of `dpo` is out of range, or the tokenizer's chat template is not valid.
    pub fn new(encoder: Encoder, dpo: Dpo) -> Result<Self, DataError> {
        dpo.check()?;
        let tokenizer = encoder.tokenizer();
        let template = match tokenizer.chat_template() {
            Err(DataError::Chat(ChatError::NoTemplate)) => None,
            found => Some(found?),
        };
        Ok(Self {
            end: tokenizer.special().eos.is_some(),
            encoder,
            dpo,
            fields: PreferenceFields::default(),
            template,
            kept: KeptEnd::default(),
            end_id: None,
            padding: Padding::default(),
            pad_id: None,
        })
    }

    /// Sets the fields of a pair.
    pub fn fields(self, fields: PreferenceFields) -> Self {
        Self { fields, ..self }
    }

    /// Sets what is kept of a row with more tokens than the encoder's `max_length`. Default: its start.
    pub fn kept(self, kept: KeptEnd) -> Self {
        Self { kept, ..self }
    }

    /// Sets whether texts get an end token.
    pub fn end(self, end: bool) -> Self {
        Self { end, ..self }
    }

    /// Ends texts with this token.
    pub fn end_id(self, id: u32) -> Self {
        Self { end: true, end_id: Some(id), ..self }
    }

    /// Sets how rows are padded. Default: on the right, to the longest row.
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// Sets the padding token. Default: the tokenizer's; if it has none, its end token; if it has neither, the id 0.
    pub fn pad_id(self, id: u32) -> Self {
        Self { pad_id: Some(id), ..self }
    }

    /// Returns the ids of the prompt, and of the prompt with each answer.
    fn ids(&self, record: &Record) -> Result<[Vec<u32>; 3], DataError> {
        match self.fields.pair(record)? {
            Pair::Texts { prompt, chosen, rejected } => {
                let [prompt, mut chosen, mut rejected] = self.encoded([prompt, chosen, rejected], true)?;
                if self.end {
                    let eos = self.encoder.tokenizer().special().eos;
                    let end_id = super::role(self.end_id, eos, "end", "end_id")?;
                    for ids in [&mut chosen, &mut rejected] {
                        if ids.last() != Some(&end_id) {
                            ids.push(end_id);
                        }
                    }
                }
                Ok([prompt, chosen, rejected])
            }
            Pair::Conversations { prompt, chosen, rejected } => {
                let compiled;
                let template = match &self.template {
                    Some(template) => template,
                    None => {
                        compiled = self.encoder.tokenizer().chat_template()?;
                        &compiled
                    }
                };
                let text = |of: &Conversation, asks: bool| match of.messages.is_empty() {
                    true => Ok(String::new()),
                    false => {
                        let text = template.render(of, asks)?.text;
                        template.require_messages(of, &text)?;
                        Ok::<_, DataError>(text)
                    }
                };
                let asks = prompt.messages.last().is_some_and(|last| !Message::is_answer(last));
                self.encoded([text(&prompt, asks)?, text(&chosen, false)?, text(&rejected, false)?], false)
            }
        }
    }

    fn encoded(&self, texts: [String; 3], special: bool) -> Result<[Vec<u32>; 3], DataError> {
        let whole = self.encoder.clone().special(special).max_length(None).stride(None);
        let mut all = [const { Vec::new() }; 3];
        for (ids, text) in all.iter_mut().zip(texts) {
            *ids = whole.encode(Input::Text(&text), None)?.pop().unwrap_or_default().ids;
        }
        Ok(all)
    }

    /// Cuts a row to the most tokens of the encoder.
    fn row(&self, mut ids: Vec<u32>, mut prompt: usize) -> CausalSample {
        let (most, ..) = self.encoder.limits();
        if let Some(excess) = most.and_then(|most| ids.len().checked_sub(most)).filter(|&excess| excess > 0) {
            self.encoder.lose(excess);
            match self.kept {
                KeptEnd::Start => ids.truncate(ids.len() - excess),
                KeptEnd::End => {
                    ids.drain(..excess);
                    prompt = prompt.saturating_sub(excess);
                }
            }
        }
        CausalSample { prompt: prompt.min(ids.len()), ids, unlearned: Vec::new() }
    }

    fn pad(&self) -> u32 {
        let special = self.encoder.tokenizer().special();
        self.pad_id.or(special.pad).or(special.eos).unwrap_or(0)
    }
}

/// Returns the number of ids that both begin with.
fn shared(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

impl Collator for Preferences {
    type Sample = PreferenceSample;
    type Batch = PreferenceBatch;

    fn encode(&self, record: &Record) -> Result<Vec<PreferenceSample>, DataError> {
        let [prompt, chosen, rejected] = self.ids(record)?;
        if chosen == rejected {
            let expected = format!("another answer than `{}`", self.fields.chosen);
            return Err(record.mismatch(&self.fields.rejected, expected, "the same one"));
        }
        let prompt = shared(&prompt, &chosen).min(shared(&prompt, &rejected));
        let pair = PreferenceSample::new(self.row(chosen, prompt), self.row(rejected, prompt));
        Ok(if pair.counts() { vec![pair] } else { Vec::new() })
    }

    /// The tokens of the longer row.
    fn length(&self, sample: &PreferenceSample) -> usize {
        sample.rows().map(|row| row.ids.len()).into_iter().max().unwrap_or(0)
    }

    fn padded(&self, samples: &[Arc<PreferenceSample>]) -> usize {
        let lengths: Vec<usize> =
            samples.iter().flat_map(|pair| pair.rows()).map(|row| row.ids.len()).collect();
        self.padding.area(lengths.into_iter())
    }

    fn collate(&self, samples: &[Drawn<PreferenceSample>]) -> Result<PreferenceBatch, DataError> {
        let pairs: Vec<_> = samples.iter().map(|drawn| drawn.sample.clone()).collect();
        PreferenceBatch::new(&pairs, self.dpo, &self.padding, self.pad())
    }

    fn keeping(&self) -> Option<Keeping<PreferenceSample>> {
        let Self { encoder, dpo: _, fields, template, kept, end, end_id, padding: _, pad_id: _ } = self;
        let template = match template {
            Some(template) => Some(template.settings()?),
            None => None,
        };
        let settings = ("Preferences", encoder.settings()?, fields, template, kept, end, end_id);
        Some(Keeping::new(Fingerprint::of_settings(&settings)?))
    }
}

#[cfg(test)]
#[path = "preferences_tests.rs"]
mod tests;
