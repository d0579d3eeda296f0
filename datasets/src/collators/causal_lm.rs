//! Causal language modeling: predicts each token from those before it.

use std::sync::Arc;

use super::{CausalSample, Chat};
use crate::{
    Collator, DataError, Drawn, Encoder, Encoding, Fingerprint, Input, Keeping, Padding, Record, Side,
    TokenBatch,
};

/// Prepares texts for a language model that predicts the next token: each token is its own label.
///
/// A record has a text, or a prompt and a completion. With a prompt, only the completion counts in the loss. Prompt and
/// completion are tokenized as one text, with nothing inserted between them, so the tokens are the same as at
/// inference. The completion begins with the first token that reaches into it: a token that spans both counts.
///
/// The model shifts the labels by one; see [`TokenBatch`]. Labels are [`IGNORE`](crate::IGNORE) where the mask is
/// `false`, not where the id is the padding token: a token that ends a text counts even if it is also the padding
/// token. With padding on the left, the first token of a row does not count, since padding would predict it.
///
/// A record in which nothing counts yields no sample: an empty text, or a prompt so long that its completion is cut
/// off.
///
/// # Example
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use firebrick_datasets::collators::CausalLm;
/// use firebrick_datasets::{Batch, Collator, Drawn, Encoder, Record, RecordPlace, Tokenizer, Value};
///
/// let tokenizer = Arc::new(Tokenizer::characters("2+3=5.")?);
/// let task = CausalLm::new(Encoder::new(tokenizer)).prompted("question", "answer").pad_id(0);
///
/// let text = |text: &str| Value::Text(text.to_owned());
/// let record = Record::new(
///     RecordPlace { file: Path::new("sums.jsonl").into(), line: 1 },
///     vec![("question".into(), text("2+3=")), ("answer".into(), text("5."))],
/// );
/// let sample = Arc::new(task.encode(&record)?.remove(0));
/// let batch = task.collate(&[Drawn { epoch: 0, index: 0, sample }])?;
/// assert_eq!(batch.host_ids(), [2, 0, 3, 5, 4, 1]);
/// assert_eq!(batch.host_labels(), [-100, -100, -100, -100, 4, 1]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CausalLm {
    encoder: Encoder,
    /// The encoder with one token less, which reports whether it cut a text. Used if an end token is added.
    shorter: Encoder,
    prompt_field: Option<String>,
    text_field: String,
    chat: Option<Chat>,
    end: bool,
    end_id: Option<u32>,
    padding: Padding,
    pad_id: Option<u32>,
}

impl CausalLm {
    /// Reads the field `text` and adds no end token.
    pub fn new(encoder: Encoder) -> Self {
        let (max_length, stride, _) = encoder.limits();
        // Without a stride, the rest of a cut text is lost, but the collator must know whether there was any.
        let shorter = encoder.clone().max_length(max_length.map(|most| most.saturating_sub(1)));
        Self {
            encoder,
            shorter: shorter.stride(stride.or(Some(0))),
            prompt_field: None,
            text_field: "text".to_owned(),
            chat: None,
            end: false,
            end_id: None,
            padding: Padding::default(),
            pad_id: None,
        }
    }

    /// Sets the field of the text, all of which counts. Default: `text`.
    pub fn field(mut self, text: impl Into<String>) -> Self {
        self.prompt_field = None;
        self.text_field = text.into();
        self
    }

    /// Sets the fields of a prompt, which does not count, and of its completion.
    pub fn prompted(mut self, prompt: impl Into<String>, completion: impl Into<String>) -> Self {
        self.prompt_field = Some(prompt.into());
        self.text_field = completion.into();
        self
    }

    /// Reads conversations instead of texts. Their template ends them: [`end`](Self::end) does not apply. A
    /// conversation is one sample; one with more tokens than the encoder's `max_length` is cut, whatever the stride.
    pub fn chat(mut self, chat: Chat) -> Self {
        self.chat = Some(chat);
        self
    }

    /// Sets whether to add an end token after each text. Default: no.
    ///
    /// The end token takes one of the encoder's `max_length` tokens. A cut text gets no end token. If the tokenizer
    /// already adds one, no second one is added.
    pub fn end(mut self, end: bool) -> Self {
        self.end = end;
        self
    }

    /// Sets the end token. Default: the tokenizer's.
    pub fn end_id(mut self, id: u32) -> Self {
        self.end_id = Some(id);
        self
    }

    /// Sets how rows are padded. Default: on the right, to the longest row.
    pub fn padding(mut self, padding: Padding) -> Self {
        self.padding = padding;
        self
    }

    /// Sets the padding token. Default: the tokenizer's; if it has none, its end token; if it has neither, the id 0. No
    /// position that counts in the loss attends to it.
    pub fn pad_id(mut self, id: u32) -> Self {
        self.pad_id = Some(id);
        self
    }

    pub(super) fn pad(&self) -> u32 {
        let special = self.encoder.tokenizer().special();
        self.pad_id.or(special.pad).or(special.eos).unwrap_or(0)
    }

    pub(super) fn rows(&self) -> &Padding {
        &self.padding
    }

    /// Encodes a text, with an end token where one belongs.
    fn encodings(&self, text: &str) -> Result<Vec<Encoding>, DataError> {
        if !self.end {
            return self.encoder.encode(Input::Text(text), None);
        }
        let eos = self.encoder.tokenizer().special().eos;
        let end_id = super::role(self.end_id, eos, "end", "end_id")?;
        let (_, stride, cut) = self.encoder.limits();
        let mut pieces = self.shorter.encode(Input::Text(text), None)?;
        let last = match cut {
            Side::Left => 0,
            Side::Right => pieces.len().saturating_sub(1),
        };
        if let Some(piece) = pieces.get_mut(last).filter(|piece| piece.ids.last() != Some(&end_id)) {
            piece.ids.push(end_id);
        }
        if stride.is_none() {
            self.encoder.lose(pieces.iter().skip(1).map(Encoding::own_tokens).sum());
            pieces.truncate(1);
        }
        Ok(pieces)
    }
}

/// Returns how many leading tokens do not count: those before the first token that reaches beyond the byte `prompt` of
/// the text.
///
/// If the text ends at `prompt`, the tokens added after it count, so a model learns to end. If the rest was cut off,
/// nothing counts.
pub(super) fn tokens_of_prompt(encoding: &Encoding, text: &str, prompt: usize) -> usize {
    let tokens = || (0..encoding.len()).filter(|&token| encoding.special.get(token) == Some(&false));
    let end = |token: usize| encoding.offsets.get(token).map_or(0, |offset| offset.1 as usize);
    if let Some(first) = tokens().find(|&token| end(token) > prompt) {
        return first;
    }
    let ends = text.len() <= prompt;
    match tokens().next_back() {
        // Trailing white space may have no token.
        Some(last) if ends && end(last) >= text.trim_end().len() => last + 1,
        None if ends && text.trim_end().is_empty() => 0,
        _ => encoding.len(),
    }
}

impl Collator for CausalLm {
    type Sample = CausalSample;
    type Batch = TokenBatch;

    fn encode(&self, record: &Record) -> Result<Vec<CausalSample>, DataError> {
        if let Some(chat) = &self.chat {
            let sample = chat.encode(record, &self.encoder)?;
            return Ok(if sample.counts() { vec![sample] } else { Vec::new() });
        }
        let text = record.text(&self.text_field)?;
        let samples: Vec<_> = match &self.prompt_field {
            None => {
                let whole = |encoding: Encoding| CausalSample { ids: encoding.ids, ..Default::default() };
                self.encodings(text)?.into_iter().map(whole).collect()
            }
            Some(field) => {
                let prompt = record.text(field)?;
                let whole = format!("{prompt}{text}");
                let both = |encoding: Encoding| CausalSample {
                    prompt: tokens_of_prompt(&encoding, &whole, prompt.len()),
                    ids: encoding.ids,
                    unlearned: Vec::new(),
                };
                self.encodings(&whole)?.into_iter().map(both).collect()
            }
        };
        // The first token of a row is never predicted.
        Ok(samples.into_iter().filter(CausalSample::counts).collect())
    }

    fn length(&self, sample: &CausalSample) -> usize {
        sample.ids.len()
    }

    fn padded(&self, samples: &[Arc<CausalSample>]) -> usize {
        self.padding.area(samples.iter().map(|sample| sample.ids.len()))
    }

    fn collate(&self, samples: &[Drawn<CausalSample>]) -> Result<TokenBatch, DataError> {
        let labels = samples.iter().map(|drawn| drawn.sample.labels()).collect::<Result<_, _>>()?;
        let rows = samples.iter().map(|drawn| drawn.sample.ids.clone()).collect();
        TokenBatch::padded(rows, labels, &self.padding, self.pad())
    }

    fn keeping(&self) -> Option<Keeping<CausalSample>> {
        // `shorter` follows from the encoder.
        let Self { encoder, shorter: _, prompt_field, text_field, chat, end, end_id, padding: _, pad_id: _ } =
            self;
        let chat = match chat {
            Some(chat) => Some(chat.settings()?),
            None => None,
        };
        let settings = ("CausalLm", encoder.settings()?, prompt_field, text_field, chat, end, end_id);
        Some(Keeping::new(Fingerprint::of_settings(&settings)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Batch, IGNORE, Tokenizer, TokenizerError,
        collators::testing::{bytebpe, drawn, record, text, unigram},
    };

    fn letters() -> Encoder {
        Encoder::new(Arc::new(Tokenizer::characters("abcdefgh").unwrap()))
    }

    fn encode(task: &CausalLm, of: &str) -> Vec<Vec<u32>> {
        let samples = task.encode(&record(vec![("text", text(of))])).unwrap();
        samples.into_iter().map(|sample| sample.ids).collect()
    }

    #[test]
    fn only_complete_texts_get_an_end_token() {
        let task = |encoder: Encoder| CausalLm::new(encoder).end(true).end_id(9);
        assert_eq!(encode(&task(letters()), "abc"), [[0, 1, 2, 9]]);
        assert_eq!(encode(&task(letters().max_length(Some(4))), "abc"), [[0, 1, 2, 9]]);
        assert_eq!(encode(&task(letters().max_length(Some(4))), "abcd"), [[0, 1, 2]]);
        assert_eq!(encode(&task(letters().max_length(Some(4)).cut(Side::Left)), "abcd"), [[1, 2, 3, 9]]);
        let strided = letters().max_length(Some(4)).stride(Some(1));
        assert_eq!(encode(&task(strided), "abcde"), [vec![0, 1, 2], vec![2, 3, 4, 9]]);
        // T5's tokenizer adds its own end token.
        let task = CausalLm::new(Encoder::new(unigram())).end(true).end_id(1);
        let ids = encode(&task, "the river").remove(0);
        assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 1);
    }

    #[test]
    fn an_end_token_equal_to_padding_is_supervised() {
        let task = CausalLm::new(Encoder::new(bytebpe())).end(true).end_id(0).pad_id(0);
        let samples = ["the river", "a"].map(|of| task.encode(&record(vec![("text", text(of))])).unwrap());
        let batch = task.collate(&drawn(samples.into_iter().flatten())).unwrap();
        let [_, length] = batch.shape();
        let short = &batch.host_labels()[length..];
        assert_eq!(short[1], 0);
        assert!(short[2..].iter().all(|&label| label == IGNORE));
        assert_eq!(batch.items(), batch.tokens() - 2);
    }

    #[test]
    fn prompts() {
        let task = CausalLm::new(letters()).prompted("p", "c");
        let prompt = |task: &CausalLm, prompt, completion| {
            let record = record(vec![("p", text(prompt)), ("c", text(completion))]);
            task.encode(&record).unwrap().into_iter().map(|sample| sample.prompt).collect::<Vec<_>>()
        };
        assert_eq!(prompt(&task, "ab", "c"), [2]);
        assert_eq!(prompt(&task, "", "abc"), [0]);
        assert!(prompt(&task, "ab", "").is_empty());
        // The end token is learned even if there is nothing before it.
        assert_eq!(prompt(&task.clone().end(true).end_id(9), "ab", ""), [2]);
        let cut = CausalLm::new(letters().max_length(Some(2))).prompted("p", "c");
        assert!(prompt(&cut, "ab", "c").is_empty());
        // A tokenizer may add an end token even if the completion is cut off. That one is not learned.
        let ended = CausalLm::new(Encoder::new(unigram()).max_length(Some(3))).prompted("p", "c");
        assert!(prompt(&ended, "the river runs", " slowly").is_empty());
        assert_eq!(prompt(&ended, "the", ""), [1]);

        // A token that begins with the space of the prompt counts.
        let spaced = CausalLm::new(Encoder::new(unigram())).prompted("p", "c");
        let sample =
            spaced.encode(&record(vec![("p", text("the ")), ("c", text("river"))])).unwrap().remove(0);
        assert_eq!(sample.prompt, 1);
    }

    #[test]
    fn the_padding_token_has_defaults() {
        assert_eq!(CausalLm::new(letters()).pad_id(3).pad(), 3);
        assert_eq!(CausalLm::new(letters()).pad(), 0);
        assert_eq!(CausalLm::new(Encoder::new(unigram())).pad(), unigram().special().pad.unwrap());
        let names = crate::SpecialNames { eos: Some("c".to_owned()), ..Default::default() };
        let ended = Tokenizer::characters("abc").unwrap().with_special(names).unwrap();
        assert_eq!(CausalLm::new(Encoder::new(Arc::new(ended))).pad(), 2);
    }

    #[test]
    fn left_padding() {
        let task = CausalLm::new(letters()).padding(Padding::default().side(Side::Left));
        let sample = |ids: &[u32]| CausalSample { ids: ids.to_vec(), ..Default::default() };
        let batch = task.collate(&drawn([sample(&[1, 2, 3]), sample(&[4, 5])])).unwrap();
        assert_eq!(batch.host_ids(), [1, 2, 3, 0, 4, 5]);
        assert_eq!(batch.host_labels(), [1, 2, 3, IGNORE, IGNORE, 5]);
        assert_eq!(batch.host_position_ids().unwrap(), [0, 1, 2, 0, 0, 1]);
        assert_eq!(batch.items(), 3);
    }

    #[test]
    fn empty_inputs() {
        let task = CausalLm::new(letters());
        assert!(encode(&task, "").is_empty() && encode(&task, "a").is_empty());
        assert_eq!(task.collate(&[]).unwrap().shape(), [0, 0]);
        assert_eq!(task.collate(&drawn([CausalSample::default()])).unwrap().shape(), [1, 0]);
        let endless = CausalLm::new(letters()).end(true);
        let error = endless.encode(&record(vec![("text", text("a"))])).unwrap_err();
        assert!(matches!(error, DataError::Tokenizer(TokenizerError::NoToken { role: "end", .. })));
    }
}
