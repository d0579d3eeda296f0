//! Token classification: a label for each word, as in named entity recognition.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    LabeledBatch, Labels, Tokens,
    labeled_batch::{LabeledRow, each_label},
};
use crate::{
    Collator, DataError, Drawn, Encoder, Encoding, Fingerprint, IGNORE, Input, Keeping, Padding, Record,
    SampleError, Value, counted,
};

/// Which tokens of a word carry its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Subwords {
    /// Only the first. The others do not count.
    #[default]
    First,
    /// All, but after the first token, `B-X` becomes `I-X`, so an entity begins only once.
    Inside,
    /// All, with the same label.
    All,
}

/// Turns words with labels into tokens with labels.
///
/// A record has a list of words and an equally long list of labels, as names or as their numbers. Each word is
/// tokenized separately, and its tokens get its label as [`Subwords`] says. Special tokens and padding have the label
/// [`IGNORE`](crate::IGNORE). If the tokenizer makes no token of a word, or the word is cut off, its label is dropped.
/// With a stride, the rest of a cut text becomes further samples; the first token of a word in such a sample counts as
/// the word's first, but words that an earlier sample has are not [scored](LabeledTokens::words) again. A record without
/// a labelled token yields no sample.
///
/// # Example
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use firebrick_datasets::collators::{Labels, TokenClassification};
/// use firebrick_datasets::{Collator, Encoder, Record, RecordPlace, Tokenizer, Value};
///
/// let tokenizer = Arc::new(Tokenizer::from_file("tests/golden/wordpiece/tokenizer.json")?);
/// let labels = Labels::new(["O", "B-PER", "I-PER"])?;
/// let task = TokenClassification::new(Encoder::new(tokenizer), labels).pad_id(0);
///
/// let list = |texts: [&str; 2]| Value::List(texts.map(|text| Value::Text(text.into())).into());
/// let record = Record::new(
///     RecordPlace { file: Path::new("train.jsonl").into(), line: 1 },
///     vec![("words".into(), list(["Maria", "bakes"])), ("labels".into(), list(["B-PER", "O"]))],
/// );
/// let samples = task.encode(&record)?;
/// // [CLS] ma ##ri ##a bak ##es [SEP]
/// assert_eq!(samples[0].labels, [-100, 1, -100, -100, 0, -100, -100]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokenClassification {
    encoder: Encoder,
    labels: Labels,
    subwords: Subwords,
    /// For each label, the label that continues it.
    continued: Vec<i32>,
    words_field: String,
    labels_field: String,
    padding: Padding,
    pad_id: Option<u32>,
}

/// Tokens, each with a label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabeledTokens {
    /// The tokens.
    pub tokens: Tokens,
    /// The label of each token, or [`IGNORE`](crate::IGNORE).
    pub labels: Vec<i32>,
    /// The number of the word in its record that each token scores. Only the first token of a word does, in the first
    /// sample that has the word.
    pub words: Vec<Option<u32>>,
    /// Whether the sample is the first of its record.
    pub first: bool,
}

impl LabeledTokens {
    /// Takes tokens that are a record of their own. Each label is scored.
    pub fn new(tokens: Tokens, labels: Vec<i32>) -> Self {
        Self { words: each_label(&labels), tokens, labels, first: true }
    }
}

impl TokenClassification {
    /// Reads the fields `words` and `labels`, and labels the first token of each word.
    pub fn new(encoder: Encoder, labels: Labels) -> Self {
        Self {
            encoder,
            labels,
            subwords: Subwords::First,
            continued: vec![],
            words_field: "words".to_owned(),
            labels_field: "labels".to_owned(),
            padding: Padding::default(),
            pad_id: None,
        }
    }

    /// Sets the fields of the words and of their labels. Default: `words` and `labels`.
    pub fn fields(mut self, words: impl Into<String>, labels: impl Into<String>) -> Self {
        self.words_field = words.into();
        self.labels_field = labels.into();
        self
    }

    /// Sets which tokens of a word carry its label. Default: the first.
    ///
    /// # Errors
    ///
    /// [`SampleError::NoInsideLabel`] for [`Subwords::Inside`] if a label `B-X` has no `I-X`.
    pub fn subwords(mut self, subwords: Subwords) -> Result<Self, DataError> {
        self.subwords = subwords;
        let continued = |name: &String| {
            let continues = match name.strip_prefix("B-") {
                Some(entity) if subwords == Subwords::Inside => format!("I-{entity}"),
                _ => name.clone(),
            };
            let id = self.labels.id(&continues);
            id.ok_or_else(|| {
                DataError::Sample(SampleError::NoInsideLabel { begins: name.clone(), continues })
            })
        };
        self.continued = self.labels.names().iter().map(continued).collect::<Result<_, _>>()?;
        Ok(self)
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

    /// Returns the labels.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    fn pad(&self) -> Result<u32, DataError> {
        super::pad(self.pad_id, self.encoder.tokenizer())
    }

    /// Reads the labels of the words.
    fn read_labels(&self, record: &Record, words: usize) -> Result<Vec<i32>, DataError> {
        let field = &self.labels_field;
        let Some(Value::List(values)) = record.get(field) else {
            return Err(record.expected(field, "a list of labels"));
        };
        if values.len() != words {
            let expected = format!("{}, one for each of `{}`", counted(words, "label"), self.words_field);
            return Err(record.mismatch(field, expected, values.len().to_string()));
        }
        let read =
            |(word, value)| self.labels.read(value, record, field, format_args!(" for word {}", word + 1));
        values.iter().enumerate().map(read).collect()
    }

    /// Returns the label of each token.
    fn align(&self, encoding: &Encoding, of_words: &[i32]) -> Vec<i32> {
        let mut before = None;
        let label = |&word: &Option<u32>| {
            let first = word != before;
            before = word;
            let Some(&label) = word.and_then(|word| of_words.get(word as usize)) else { return IGNORE };
            match self.subwords {
                _ if first => label,
                Subwords::First => IGNORE,
                Subwords::Inside => self.continued.get(label as usize).copied().unwrap_or(label),
                Subwords::All => label,
            }
        };
        encoding.words.iter().map(label).collect()
    }
}

impl Collator for TokenClassification {
    type Sample = LabeledTokens;
    type Batch = LabeledBatch;

    fn encode(&self, record: &Record) -> Result<Vec<LabeledTokens>, DataError> {
        self.pad()?;
        let words = record.texts(&self.words_field)?;
        let of_words = self.read_labels(record, words.len())?;
        let encodings = self.encoder.encode(Input::Words(&words), None)?;
        let mut unscored = vec![true; words.len()];
        let mut samples = Vec::with_capacity(encodings.len());
        for encoding in encodings {
            let labels = self.align(&encoding, &of_words);
            if labels.iter().all(|&label| label == IGNORE) {
                continue;
            }
            let mut scored = |&word: &Option<u32>| {
                let unscored = unscored.get_mut(word? as usize)?;
                std::mem::take(unscored).then_some(word?)
            };
            samples.push(LabeledTokens {
                labels,
                words: encoding.words.iter().map(&mut scored).collect(),
                tokens: Tokens::of(encoding, self.encoder.tokenizer()),
                first: samples.is_empty(),
            });
        }
        Ok(samples)
    }

    fn begins_record(&self, sample: &LabeledTokens) -> bool {
        sample.first
    }

    fn length(&self, sample: &LabeledTokens) -> usize {
        sample.tokens.len()
    }

    fn padded(&self, samples: &[Arc<LabeledTokens>]) -> usize {
        self.padding.area(samples.iter().map(|sample| sample.tokens.len()))
    }

    fn collate(&self, samples: &[Drawn<LabeledTokens>]) -> Result<LabeledBatch, DataError> {
        let rows: Vec<_> = samples
            .iter()
            .map(|drawn| {
                let LabeledTokens { tokens, labels, words, first } = &*drawn.sample;
                LabeledRow { tokens, labels, words, first: *first }
            })
            .collect();
        LabeledBatch::of_words(&rows, &self.padding, self.pad()?)
    }

    fn keeping(&self) -> Option<Keeping<LabeledTokens>> {
        // `continued` follows from the labels.
        let Self { encoder, labels, subwords, continued: _, words_field, labels_field, padding: _, pad_id } =
            self;
        let (encoder, labels) = (encoder.settings()?, (labels.names(), labels.numbers()));
        let settings = ("TokenClassification", encoder, labels, subwords, words_field, labels_field, pad_id);
        Some(Keeping::new(Fingerprint::of_settings(&settings)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Batch,
        collators::testing::{list, record, wordpiece},
    };

    fn task(names: &[&str], subwords: Subwords) -> TokenClassification {
        let labels = Labels::new(names.iter().copied()).unwrap();
        TokenClassification::new(Encoder::new(wordpiece()), labels).pad_id(0).subwords(subwords).unwrap()
    }

    fn labels(task: &TokenClassification, words: &[&str], labels: &[&str]) -> Vec<i32> {
        let record = record(vec![("words", list(words)), ("labels", list(labels))]);
        task.encode(&record).unwrap().remove(0).labels
    }

    #[test]
    fn subwords() {
        let names = ["O", "B-PER", "I-PER"];
        // [CLS] ma ##ri ##a do ##es [SEP]
        for (subwords, expected) in [
            (Subwords::First, [-100, 1, -100, -100, 0, -100, -100]),
            (Subwords::Inside, [-100, 1, 2, 2, 0, 0, -100]),
            (Subwords::All, [-100, 1, 1, 1, 0, 0, -100]),
        ] {
            assert_eq!(labels(&task(&names, subwords), &["Maria", "does"], &["B-PER", "O"]), expected);
        }
    }

    /// Continuing labels are found by name, not by number.
    #[test]
    fn continuing_labels_are_found_by_name() {
        let task = task(&["I-B", "B-A", "O", "I-A", "B-B"], Subwords::Inside);
        assert_eq!(labels(&task, &["Maria", "does"], &["B-A", "B-B"]), [-100, 1, 3, 3, 4, 0, -100]);
        assert_eq!(labels(&task, &["Maria"], &["I-B"]), [-100, 0, 0, 0, -100]);
    }

    #[test]
    fn words_without_tokens_do_not_shift_labels() {
        let task = task(&["a", "b", "c"], Subwords::First);
        let found = labels(&task, &["\u{200b}", "the", "", "river"], &["a", "b", "a", "c"]);
        assert_eq!(found.iter().filter(|&&label| label != IGNORE).collect::<Vec<_>>(), [&1, &2]);
    }

    #[test]
    fn neighbouring_words_of_one_label() {
        assert_eq!(labels(&task(&["a"], Subwords::First), &["the", "the"], &["a", "a"]), [-100, 0, 0, -100]);
    }

    #[test]
    fn records_without_labels_yield_no_sample() {
        let task = task(&["a"], Subwords::First);
        let empty = record(vec![("words", list(&[])), ("labels", list(&[]))]);
        assert!(task.encode(&empty).unwrap().is_empty());
        assert_eq!(task.collate(&[]).unwrap().samples(), 0);
    }

    /// Words that pieces repeat, and words that are cut at an edge, score once.
    #[test]
    fn each_word_scores_once() {
        // Pieces of four tokens between [CLS] and [SEP], of which each repeats the last of the piece before.
        let encoder = Encoder::new(wordpiece()).max_length(Some(6)).stride(Some(1));
        let words = ["Maria", "does", "the", "the", "Maria"];
        let tags = ["B-PER", "O", "O", "O", "B-PER"];
        for subwords in [Subwords::First, Subwords::Inside, Subwords::All] {
            let labels = Labels::new(["O", "B-PER", "I-PER"]).unwrap();
            let task =
                TokenClassification::new(encoder.clone(), labels).pad_id(0).subwords(subwords).unwrap();
            let record = record(vec![("words", list(&words)), ("labels", list(&tags))]);
            let samples = task.encode(&record).unwrap();
            assert!(samples.len() > 2);
            let first: Vec<_> = samples.iter().map(|sample| task.begins_record(sample)).collect();
            assert_eq!(first.iter().filter(|&&first| first).count(), 1);
            assert!(first[0]);
            let scored: Vec<_> = samples.iter().flat_map(|sample| sample.words.iter().flatten()).collect();
            assert_eq!(scored, [&0, &1, &2, &3, &4], "{subwords:?}");
            // More labels than words count in the loss.
            let labels = samples.iter().flat_map(|sample| &sample.labels);
            assert!(labels.filter(|label| **label != IGNORE).count() > words.len());
            let batch = task.collate(&crate::collators::testing::drawn(samples)).unwrap();
            assert_eq!((batch.records(), batch.samples()), (1, first.len()));
            assert_eq!(batch.host_words().iter().filter(|word| **word != IGNORE).count(), words.len());
        }
    }

    #[test]
    fn mistakes() {
        let task = task(&["O", "B-PER", "I-PER"], Subwords::First);
        let message = |fields| task.encode(&record(fields)).unwrap_err().to_string();
        let error = message(vec![("words", list(&["a", "b"])), ("labels", list(&["O", "B-ORG"]))]);
        assert!(error.contains("field `labels`: expected one of the labels O, B-PER, I-PER, or"), "{error}");
        assert!(error.contains("found the text \"B-ORG\" for word 2"), "{error}");
        let error = message(vec![("words", list(&["a", "b"])), ("labels", list(&["O"]))]);
        assert!(error.contains("expected 2 labels, one for each of `words`, found 1;"), "{error}");

        let labels = Labels::new(["B-PER"]).unwrap();
        let task = TokenClassification::new(Encoder::new(wordpiece()), labels);
        let error = task.clone().subwords(Subwords::Inside).unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::NoInsideLabel { .. })));
    }
}
