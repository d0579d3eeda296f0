//! Sequence to sequence: turns one text into another.

use std::sync::Arc;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Inputs, Tokens, causal_lm::tokens_of_prompt};
use crate::{
    Batch, Collator, DataError, Drawn, Encoder, Encoding, Fingerprint, IGNORE, Input, Keeping, Padding,
    Record,
    token_batch::{signed, signed_row},
};

/// Prepares sources and targets for an encoder-decoder model such as T5.
///
/// Sources and targets have separate encoders, so each is cut at its own length, and the end token that a tokenizer
/// adds stays in place when a target is cut. They are padded separately.
///
/// The decoder's input is the target shifted by one: the start token, then the target without its last token. The
/// labels are the target; they are [`IGNORE`](crate::IGNORE) in padding and in the
/// [`target_prompt`](Self::target_prompt), a part of the target that the decoder reads but that does not count.
///
/// # Example
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use firebrick_datasets::collators::Seq2Seq;
/// use firebrick_datasets::{Collator, Drawn, Encoder, Record, RecordPlace, Tokenizer, Value};
///
/// let tokenizer = Arc::new(Tokenizer::from_file("tests/golden/unigram/tokenizer.json")?);
/// let encoder = Encoder::new(tokenizer);
/// let task = Seq2Seq::new(encoder.clone().max_length(Some(64)), encoder.max_length(Some(8)))
///     .fields("en", "de")
///     .prefix("translate English to German: ")
///     .pad_id(0);
///
/// let text = |text: &str| Value::Text(text.to_owned());
/// let record = Record::new(
///     RecordPlace { file: Path::new("pairs.jsonl").into(), line: 1 },
///     vec![("en".into(), text("the mill")), ("de".into(), text("die Mühle"))],
/// );
/// let sample = Arc::new(task.encode(&record)?.remove(0));
/// let target = &sample.target;
/// let batch = task.collate(&[Drawn { epoch: 0, index: 0, sample: sample.clone() }])?;
/// assert_eq!(batch.host_decoder_ids()[..2], [0, target[0] as i32]);
/// assert_eq!(batch.host_labels()[..2], [target[0] as i32, target[1] as i32]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Seq2Seq {
    source: Encoder,
    target: Encoder,
    source_field: String,
    target_field: String,
    prompt_field: Option<String>,
    prefix: String,
    source_padding: Padding,
    target_padding: Padding,
    pad_id: Option<u32>,
    start_id: Option<u32>,
}

/// A tokenized source and target.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Seq2SeqSample {
    /// The source.
    pub source: Tokens,
    /// The ids of the target.
    pub target: Vec<u32>,
    /// The number of leading target ids that do not count in the loss.
    pub prompt: usize,
    /// The record's target text from the first token that counts on. Generated text is compared with it. The ids may
    /// hold less of it, if they were cut or a word has no token.
    #[serde(serialize_with = "write_text", deserialize_with = "read_text")]
    pub text: Arc<str>,
}

fn write_text<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn read_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    Ok(String::deserialize(deserializer)?.into())
}

impl Seq2Seq {
    /// Reads the fields `source` and `target`.
    ///
    /// A stride of the encoders has no effect: the rest of a cut text is lost.
    pub fn new(source: Encoder, target: Encoder) -> Self {
        Self {
            source: source.stride(None),
            target: target.stride(None),
            source_field: "source".to_owned(),
            target_field: "target".to_owned(),
            prompt_field: None,
            prefix: String::new(),
            source_padding: Padding::default(),
            target_padding: Padding::default(),
            pad_id: None,
            start_id: None,
        }
    }

    /// Sets the fields of source and target. Default: `source` and `target`.
    pub fn fields(mut self, source: impl Into<String>, target: impl Into<String>) -> Self {
        self.source_field = source.into();
        self.target_field = target.into();
        self
    }

    /// Sets a prefix for each source, such as T5's task names. Default: nothing.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets a field with the beginning of the target, such as the part of a dialogue before the answer. The decoder
    /// reads it, but it does not count in the loss. Default: none.
    ///
    /// Prompt and target are tokenized as one text; the first token that reaches beyond the prompt counts.
    pub fn target_prompt(mut self, field: impl Into<String>) -> Self {
        self.prompt_field = Some(field.into());
        self
    }

    /// Sets how sources and targets are padded. Default: on the right, to the longest row.
    pub fn padding(mut self, sources: Padding, targets: Padding) -> Self {
        (self.source_padding, self.target_padding) = (sources, targets);
        self
    }

    /// Sets the padding token. Default: the tokenizer's.
    pub fn pad_id(mut self, id: u32) -> Self {
        self.pad_id = Some(id);
        self
    }

    /// Sets the token that the decoder starts with, `decoder_start_token_id` in a model's configuration. Default: the
    /// padding token, as in T5. BART uses its end token.
    pub fn start_id(mut self, id: u32) -> Self {
        self.start_id = Some(id);
        self
    }

    /// Returns the padding tokens of sources and targets, which may have different tokenizers.
    fn pads(&self) -> Result<[u32; 2], DataError> {
        let pad = |encoder: &Encoder| super::pad(self.pad_id, encoder.tokenizer());
        Ok([pad(&self.source)?, pad(&self.target)?])
    }
}

/// Returns the text after the prompt, including the whole first counted token if it spans the end of the prompt.
fn counted<'a>(encoding: &Encoding, text: &'a str, prompt: usize, tokens: usize) -> &'a str {
    let is_text = encoding.special.get(tokens) == Some(&false);
    let first = encoding.offsets.get(tokens).map_or(prompt, |offset| offset.0 as usize);
    let start = if is_text { first.min(prompt) } else { prompt };
    text.get(start..).or(text.get(prompt..)).unwrap_or_default()
}

impl Collator for Seq2Seq {
    type Sample = Seq2SeqSample;
    type Batch = Seq2SeqBatch;

    fn encode(&self, record: &Record) -> Result<Vec<Seq2SeqSample>, DataError> {
        self.pads()?;
        let source = format!("{}{}", self.prefix, record.text(&self.source_field)?);
        let mut target = record.text(&self.target_field)?.to_owned();
        let mut prompt = 0;
        if let Some(field) = &self.prompt_field {
            let given = record.text(field)?;
            prompt = given.len();
            target.insert_str(0, given);
        }
        let sources = self.source.encode(Input::Text(&source), None)?;
        let targets = self.target.encode(Input::Text(&target), None)?;
        let both = sources.into_iter().zip(targets);
        let samples = both.map(|(source, encoding)| {
            let tokens = if prompt == 0 { 0 } else { tokens_of_prompt(&encoding, &target, prompt) };
            let text = counted(&encoding, &target, prompt, tokens).into();
            let source = Tokens::of(source, self.source.tokenizer());
            Seq2SeqSample { source, prompt: tokens, target: encoding.ids, text }
        });
        Ok(samples.filter(|sample| sample.target.len() > sample.prompt).collect())
    }

    fn length(&self, sample: &Seq2SeqSample) -> usize {
        sample.source.len() + sample.target.len()
    }

    fn padded(&self, samples: &[Arc<Seq2SeqSample>]) -> usize {
        let sources = self.source_padding.area(samples.iter().map(|sample| sample.source.len()));
        sources + self.target_padding.area(samples.iter().map(|sample| sample.target.len()))
    }

    fn collate(&self, samples: &[Drawn<Seq2SeqSample>]) -> Result<Seq2SeqBatch, DataError> {
        let [source_pad, pad_id] = self.pads()?;
        let sources: Vec<_> = samples.iter().map(|drawn| &drawn.sample.source).collect();
        let source = Inputs::new(&sources, &self.source_padding, source_pad)?;
        let lengths: Vec<_> = samples.iter().map(|drawn| drawn.sample.target.len()).collect();
        let padding = &self.target_padding;
        let shape @ [_, length] = padding.shape(&lengths)?;
        let (pad_id, start) = (signed(pad_id)?, signed(self.start_id.unwrap_or(pad_id))?);
        let mut batch = Seq2SeqBatch {
            source,
            decoder_ids: vec![],
            decoder_mask: vec![],
            labels: vec![],
            texts: vec![],
            shape,
        };
        for Seq2SeqSample { target, prompt, text, .. } in samples.iter().map(|drawn| &*drawn.sample) {
            batch.texts.push(text.clone());
            let mut labels = signed_row(target)?;
            // With padding on the right, the last token fills the first column of the padding, as if the row continued.
            let shown = if padding.is_left() { target.len() } else { length };
            let mut read = vec![start];
            read.extend(&labels);
            read.resize(shown.max(read.len()), pad_id);
            read.truncate(shown);
            padding.push(&mut batch.decoder_ids, read.into_iter(), length, pad_id);
            padding.push(&mut batch.decoder_mask, std::iter::repeat_n(true, labels.len()), length, false);
            labels.iter_mut().take(*prompt).for_each(|label| *label = IGNORE);
            padding.push(&mut batch.labels, labels.into_iter(), length, IGNORE);
        }
        Ok(batch)
    }

    fn keeping(&self) -> Option<Keeping<Seq2SeqSample>> {
        let Self { source, target, source_field, target_field, prompt_field, prefix, pad_id, .. } = self;
        // The others, about padding and the start of a row, act when a batch is made.
        let Self { source_padding: _, target_padding: _, start_id: _, .. } = self;
        let fields = (source_field, target_field, prompt_field, prefix);
        let settings = ("Seq2Seq", source.settings()?, target.settings()?, fields, pad_id);
        Some(Keeping::new(Fingerprint::of_settings(&settings)?))
    }
}

/// Padded sources and targets.
///
/// The source is `[batch, source length]`, see [`Inputs`]; everything about the target is `[batch, target length]`.
/// Decoder inputs and labels are already shifted: the model's prediction at a column is compared with the label of the
/// same column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seq2SeqBatch {
    pub(super) source: Inputs,
    pub(super) decoder_ids: Vec<i32>,
    pub(super) decoder_mask: Vec<bool>,
    pub(super) labels: Vec<i32>,
    pub(super) texts: Vec<Arc<str>>,
    pub(super) shape: [usize; 2],
}

impl Seq2SeqBatch {
    /// Returns the encoder's inputs.
    pub fn source(&self) -> &Inputs {
        &self.source
    }

    /// Returns the shape of the target, `[batch, target length]`.
    pub fn target_shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the decoder's input ids, row by row.
    pub fn host_decoder_ids(&self) -> &[i32] {
        &self.decoder_ids
    }

    /// Returns the decoder's mask, row by row: `true` for a real token.
    pub fn host_decoder_mask(&self) -> &[bool] {
        &self.decoder_mask
    }

    /// Returns the labels, row by row.
    pub fn host_labels(&self) -> &[i32] {
        &self.labels
    }

    /// Returns the text of each target as in its record: complete even if the labels are cut or words have no token.
    /// Generated text is compared with it.
    pub fn host_targets(&self) -> &[Arc<str>] {
        &self.texts
    }

    /// Returns the decoder's input ids as an integer tensor `[batch, target length]`.
    pub fn decoder_ids(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.decoder_ids.clone(), self.shape), device)
    }

    /// Returns the decoder's mask as a boolean tensor `[batch, target length]`: `true` where the target has a token,
    /// that is, where the decoder has one to predict; `false` for padding.
    ///
    /// Burn's attention takes the opposite as its `mask_pad`: give it `mask.bool_not()`.
    pub fn decoder_mask(&self, device: &Device) -> Tensor<2, Bool> {
        Tensor::from_data(TensorData::new(self.decoder_mask.clone(), self.shape), device)
    }

    /// Returns the labels as an integer tensor `[batch, target length]`.
    pub fn labels(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.labels.clone(), self.shape), device)
    }
}

impl Batch for Seq2SeqBatch {
    fn items(&self) -> usize {
        self.labels.iter().filter(|&&label| label != IGNORE).count()
    }

    fn samples(&self) -> usize {
        self.shape[0]
    }

    /// The real tokens of sources and targets.
    fn tokens(&self) -> usize {
        self.source.tokens() + self.decoder_mask.iter().filter(|&&real| real).count()
    }

    fn source_tokens(&self) -> usize {
        self.source.shape().iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Batch, Side,
        collators::testing::{drawn, record, text, unigram},
        testing,
    };

    fn task() -> Seq2Seq {
        let encoder = Encoder::new(unigram());
        Seq2Seq::new(encoder.clone(), encoder.max_length(Some(4))).pad_id(0)
    }

    fn sample(source: &[u32], target: &[u32], prompt: usize) -> Seq2SeqSample {
        let source = Tokens { ids: source.to_vec(), type_ids: vec![0; source.len()] };
        Seq2SeqSample { source, target: target.to_vec(), prompt, text: "".into() }
    }

    #[test]
    fn one_step_behind() {
        let samples = [sample(&[9], &[5, 6, 1], 0), sample(&[9, 9], &[7, 1], 0)];
        let task = task().start_id(2);
        let batch = task.collate(&drawn(samples.clone())).unwrap();
        assert_eq!(batch.host_decoder_ids(), [2, 5, 6, 2, 7, 1]);
        assert_eq!(batch.host_labels(), [5, 6, 1, 7, 1, IGNORE]);
        assert_eq!(batch.host_decoder_mask(), [true, true, true, true, true, false]);
        assert_eq!((batch.items(), batch.samples(), batch.tokens()), (5, 2, 8));
        assert_eq!(task.padded(&samples.clone().map(Arc::new)), 4 + 6);
        let device = testing::device();
        assert_eq!(batch.decoder_ids(&device).dims(), [2, 3]);
        assert_eq!(batch.labels(&device).dims(), batch.decoder_mask(&device).dims());

        let left = Padding::default().side(Side::Left);
        let batch = task.padding(left, left).collate(&drawn(samples)).unwrap();
        assert_eq!(batch.source().host_ids(), [0, 9, 9, 9]);
        assert_eq!(batch.host_decoder_ids(), [2, 5, 6, 0, 2, 7]);
        assert_eq!(batch.host_labels(), [5, 6, 1, IGNORE, 7, 1]);
    }

    #[test]
    fn prompt_tokens_are_not_supervised() {
        let batch = task().collate(&drawn([sample(&[9], &[5, 6, 1], 2)])).unwrap();
        assert_eq!(batch.host_decoder_ids(), [0, 5, 6]);
        assert_eq!(batch.host_labels(), [IGNORE, IGNORE, 1]);

        let encoder = Encoder::new(unigram());
        let task = Seq2Seq::new(encoder.clone(), encoder).target_prompt("asked").pad_id(0);
        let fields = vec![("source", text("a")), ("asked", text("the river")), ("target", text(" runs"))];
        let with = task.encode(&record(fields)).unwrap().remove(0);
        let fields = vec![("source", text("a")), ("asked", text("the river")), ("target", text(""))];
        let without = task.encode(&record(fields)).unwrap().remove(0);
        // Without a target, only the end token counts.
        assert_eq!(without.prompt, without.target.len() - 1);
        assert_eq!(with.prompt, without.prompt);
        assert_eq!(with.target[..with.prompt], without.target[..without.prompt]);
        assert_eq!((with.text.trim_start(), &*without.text), ("runs", ""));
    }

    #[test]
    fn a_prompt_that_leaves_no_room() {
        let fields =
            vec![("source", text("a")), ("asked", text("the river runs slowly")), ("target", text(" x"))];
        assert!(task().target_prompt("asked").encode(&record(fields)).unwrap().is_empty());
    }

    #[test]
    fn a_cut_target_keeps_its_end() {
        let fields = vec![("source", text("the mill")), ("target", text("the river runs in the hills"))];
        let sample = task().prefix("say: ").encode(&record(fields)).unwrap().remove(0);
        assert_eq!((sample.target.len(), sample.target[3]), (4, 1));
        // The text that generated text is compared with is not cut.
        assert_eq!(&*sample.text, "the river runs in the hills");
        let batch = task().collate(&drawn([sample.clone()])).unwrap();
        assert_eq!(batch.host_targets()[0], sample.text);
        let plain = vec![("source", text("say: the mill")), ("target", text("x"))];
        assert_eq!(sample.source, task().encode(&record(plain)).unwrap().remove(0).source);
    }

    #[test]
    fn empty_inputs() {
        assert_eq!(task().collate(&[]).unwrap().samples(), 0);
        let batch = task().collate(&drawn([sample(&[], &[], 0)])).unwrap();
        assert_eq!(batch.target_shape(), [1, 0]);
        assert!(batch.host_decoder_ids().is_empty());
        let batch = task().collate(&drawn([sample(&[], &[], 0), sample(&[], &[5, 1], 0)])).unwrap();
        assert_eq!(batch.host_decoder_ids(), [0, 0, 0, 5]);
        assert_eq!(batch.items(), 2);
    }
}
