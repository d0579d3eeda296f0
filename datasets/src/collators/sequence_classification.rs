//! Sequence classification: a label for each text or pair of texts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::labeled_batch::Targets;
use super::{Inputs, Labels, SequenceBatch, Tokens};
use crate::{
    Collator, DataError, Drawn, Encoder, Fingerprint, Input, Keeping, Padding, Record, SampleError, Value,
};

/// The kind of target that a text has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One class: its name, or its number.
    Class(Labels),
    /// Any number of classes: a list of names or numbers.
    Classes(Labels),
    /// A number, for regression.
    Number,
}

/// Prepares texts or pairs of texts with a class, several classes or a number, for a model that classifies a whole
/// text.
///
/// # Example
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use firebrick_datasets::collators::{Labels, SequenceClassification, Target};
/// use firebrick_datasets::{Collator, Drawn, Encoder, Record, RecordPlace, Tokenizer, Value};
///
/// let tokenizer = Arc::new(Tokenizer::from_file("tests/golden/wordpiece/tokenizer.json")?);
/// let labels = Labels::new(["contradicts", "follows"])?;
/// let task = SequenceClassification::new(Encoder::new(tokenizer), Target::Class(labels))
///     .pair("premise", "hypothesis")
///     .pad_id(0);
///
/// let text = |text: &str| Value::Text(text.to_owned());
/// let record = Record::new(
///     RecordPlace { file: Path::new("pairs.jsonl").into(), line: 1 },
///     vec![
///         ("premise".into(), text("the mill")),
///         ("hypothesis".into(), text("the river")),
///         ("label".into(), text("follows")),
///     ],
/// );
/// let sample = Arc::new(task.encode(&record)?.remove(0));
/// let batch = task.collate(&[Drawn { epoch: 0, index: 0, sample }])?;
/// // [CLS] the mill [SEP] the river [SEP]
/// assert_eq!(batch.inputs().host_type_ids()[..2], [0, 0]);
/// assert_eq!(batch.inputs().host_type_ids().last(), Some(&1));
/// assert_eq!(batch.host_classes(), Some(&[1][..]));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SequenceClassification {
    encoder: Encoder,
    target: Target,
    first_field: String,
    second_field: Option<String>,
    label_field: String,
    padding: Padding,
    pad_id: Option<u32>,
}

/// A tokenized text and its label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassifiedTokens {
    /// The tokens.
    pub tokens: Tokens,
    /// The label.
    pub label: Label,
    /// Whether the sample is the first of its record, and so the one that is scored.
    pub first: bool,
}

impl ClassifiedTokens {
    /// Takes tokens that are a record of their own.
    pub fn new(tokens: Tokens, label: Label) -> Self {
        Self { tokens, label, first: true }
    }
}

/// The label of one text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Label {
    /// Its class.
    Class(i32),
    /// Its classes.
    Classes(Vec<i32>),
    /// Its number.
    Number(f32),
}

impl SequenceClassification {
    /// Reads the fields `text` and `label`. If the encoder has a stride, each piece of a long text is a sample with the
    /// label of the whole text. Scores count the first piece, from which the class of a text is predicted.
    pub fn new(encoder: Encoder, target: Target) -> Self {
        Self {
            encoder,
            target,
            first_field: "text".to_owned(),
            second_field: None,
            label_field: "label".to_owned(),
            padding: Padding::default(),
            pad_id: None,
        }
    }

    /// Sets the field of the text. Default: `text`.
    pub fn field(mut self, text: impl Into<String>) -> Self {
        (self.first_field, self.second_field) = (text.into(), None);
        self
    }

    /// Sets the fields of two texts that the model reads together. The encoder's settings decide which of them is cut
    /// if they are too long.
    pub fn pair(mut self, first: impl Into<String>, second: impl Into<String>) -> Self {
        (self.first_field, self.second_field) = (first.into(), Some(second.into()));
        self
    }

    /// Sets the field of the label. Default: `label`.
    pub fn label(mut self, field: impl Into<String>) -> Self {
        self.label_field = field.into();
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

    fn pad(&self) -> Result<u32, DataError> {
        super::pad(self.pad_id, self.encoder.tokenizer())
    }

    fn read_label(&self, record: &Record) -> Result<Label, DataError> {
        let field = &self.label_field;
        let value = record.get(field);
        match (&self.target, value) {
            (Target::Class(labels), Some(value)) => Ok(Label::Class(labels.read(value, record, field, "")?)),
            (Target::Classes(labels), Some(Value::List(values))) => {
                let read = |value: &Value| match value {
                    // A number for each label, 1.0 or 0.0, would be read as ids.
                    Value::Float(_) => Err(record.mismatch(
                        field,
                        "a list of the labels that the text has: names or whole numbers",
                        format!("{value} in the list, as if it had a number for each label"),
                    )),
                    _ => labels.read(value, record, field, " in the list"),
                };
                Ok(Label::Classes(values.iter().map(read).collect::<Result<_, _>>()?))
            }
            (Target::Number, Some(value)) => number(value)
                .map(Label::Number)
                .ok_or_else(|| record.expected(field, "a finite number within f32's range")),
            (Target::Class(_), None) => Err(record.expected(field, "the name or the number of a label")),
            (Target::Classes(_), _) => Err(record.expected(field, "a list of labels")),
            (Target::Number, None) => Err(record.expected(field, "a number")),
        }
    }
}

/// Converts a value to a number. Accepts text too, since tables without types hold numbers as text.
fn number(value: &Value) -> Option<f32> {
    let number = match value {
        Value::Integer(number) => *number as f32,
        Value::Float(number) => *number as f32,
        Value::Text(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

impl Collator for SequenceClassification {
    type Sample = ClassifiedTokens;
    type Batch = SequenceBatch;

    fn encode(&self, record: &Record) -> Result<Vec<ClassifiedTokens>, DataError> {
        self.pad()?;
        let label = self.read_label(record)?;
        let first = Input::Text(record.text(&self.first_field)?);
        let second = self.second_field.as_ref().map(|field| record.text(field).map(Input::Text));
        let encodings = self.encoder.encode(first, second.transpose()?)?;
        let samples = encodings.into_iter().enumerate().map(|(at, encoding)| ClassifiedTokens {
            tokens: Tokens::of(encoding, self.encoder.tokenizer()),
            label: label.clone(),
            first: at == 0,
        });
        Ok(samples.collect())
    }

    fn begins_record(&self, sample: &ClassifiedTokens) -> bool {
        sample.first
    }

    fn length(&self, sample: &ClassifiedTokens) -> usize {
        sample.tokens.len()
    }

    fn padded(&self, samples: &[Arc<ClassifiedTokens>]) -> usize {
        self.padding.area(samples.iter().map(|sample| sample.tokens.len()))
    }

    fn collate(&self, samples: &[Drawn<ClassifiedTokens>]) -> Result<SequenceBatch, DataError> {
        let rows: Vec<_> = samples.iter().map(|drawn| &drawn.sample.tokens).collect();
        let inputs = Inputs::new(&rows, &self.padding, self.pad()?)?;
        let mut targets = match &self.target {
            Target::Class(_) => Targets::Class(vec![]),
            Target::Classes(labels) => Targets::Classes { flags: vec![], classes: labels.len() },
            Target::Number => Targets::Numbers(vec![]),
        };
        for drawn in samples {
            match (&mut targets, &drawn.sample.label) {
                (Targets::Class(all), Label::Class(class)) => all.push(*class),
                (Targets::Numbers(all), Label::Number(number)) => all.push(*number),
                (Targets::Classes { flags, classes }, Label::Classes(present)) => {
                    flags.extend(
                        (0..).take(*classes).map(|class| f32::from(u8::from(present.contains(&class)))),
                    );
                }
                _ => return Err(SampleError::OtherLabel { index: drawn.index }.into()),
            }
        }
        let first = samples.iter().map(|drawn| drawn.sample.first).collect();
        Ok(SequenceBatch { inputs, targets, first })
    }

    fn keeping(&self) -> Option<Keeping<ClassifiedTokens>> {
        let Self { encoder, target, first_field, second_field, label_field, padding: _, pad_id } = self;
        let target = match target {
            Target::Class(labels) => ("Class", Some((labels.names(), labels.numbers()))),
            Target::Classes(labels) => ("Classes", Some((labels.names(), labels.numbers()))),
            Target::Number => ("Number", None),
        };
        let fields = (first_field, second_field, label_field);
        let settings = ("SequenceClassification", encoder.settings()?, target, fields, pad_id);
        Some(Keeping::new(Fingerprint::of_settings(&settings)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Batch, ReadError,
        collators::testing::{drawn, list, record, text, wordpiece},
        testing,
    };

    fn task(target: Target) -> SequenceClassification {
        SequenceClassification::new(Encoder::new(wordpiece()), target).pad_id(0)
    }

    fn labels() -> Labels {
        Labels::new(["a", "b", "c"]).unwrap()
    }

    fn encode(task: &SequenceClassification, label: Value) -> Result<ClassifiedTokens, DataError> {
        task.encode(&record(vec![("text", text("the river")), ("label", label)])).map(|mut all| all.remove(0))
    }

    #[test]
    fn classes() {
        let task = task(Target::Class(labels()));
        let samples = [text("c"), Value::Integer(1)].map(|label| encode(&task, label).unwrap());
        let batch = task.collate(&drawn(samples)).unwrap();
        assert_eq!(batch.host_classes(), Some(&[2, 1][..]));
        assert_eq!(batch.classes(&testing::device()).unwrap().dims(), [2]);
        assert!(batch.multi_hot(&testing::device()).is_none() && batch.numbers(&testing::device()).is_none());
        assert_eq!((batch.items(), batch.samples()), (2, 2));
        let error = encode(&task, text("d")).unwrap_err().to_string();
        assert!(error.contains("one of the labels a, b, c, or a number from 0 to 2, found the text \"d\""));
    }

    #[test]
    fn several_classes() {
        let task = task(Target::Classes(labels()));
        let samples = [list(&["c", "a"]), list(&[])].map(|label| encode(&task, label).unwrap());
        let batch = task.collate(&drawn(samples)).unwrap();
        assert_eq!(batch.host_multi_hot(), Some(&[1.0, 0.0, 1.0, 0.0, 0.0, 0.0][..]));
        assert_eq!(batch.multi_hot(&testing::device()).unwrap().dims(), [2, 3]);
        assert_eq!((batch.items(), batch.samples()), (6, 2));
        assert!(encode(&task, text("a")).is_err() && encode(&task, list(&["d"])).is_err());
        // What `transformers` calls multi-hot is no list of ids.
        let multi_hot = Value::List([1.0, 0.0, 1.0].map(Value::Float).into());
        let error = encode(&task, multi_hot).unwrap_err().to_string();
        assert!(error.contains("as if it had a number for each label"), "{error}");
        // A list of ids where names are numbers.
        let stars = Labels::new(["1", "2", "3"]).unwrap();
        for (labels, expected) in [(stars.clone(), vec![0, 1]), (stars.numbered(), vec![1, 2])] {
            let task = self::task(Target::Classes(labels));
            let sample = encode(&task, Value::List([1, 2].map(Value::Integer).into())).unwrap();
            assert_eq!(sample.label, Label::Classes(expected));
        }
    }

    #[test]
    fn numbers() {
        let task = task(Target::Number);
        let values = [Value::Integer(3), Value::Float(-0.5), text(" 2.5")];
        let samples = values.map(|label| encode(&task, label).unwrap());
        let batch = task.collate(&drawn(samples)).unwrap();
        assert_eq!(batch.host_numbers(), Some(&[3.0, -0.5, 2.5][..]));
        assert_eq!(batch.numbers(&testing::device()).unwrap().dims(), [3]);
        for value in [Value::Float(f64::NAN), Value::Float(1e300), text("inf"), text("many"), Value::Null] {
            assert!(matches!(encode(&task, value), Err(DataError::Read(ReadError::Record { .. }))));
        }
        let error = task.encode(&record(vec![("text", text("a"))])).unwrap_err().to_string();
        assert!(
            error.contains("expected a number, found no such field (the record has the fields text"),
            "{error}"
        );
    }

    #[test]
    fn pieces_of_a_long_text() {
        let encoder = Encoder::new(wordpiece()).max_length(Some(4)).stride(Some(0));
        let task = SequenceClassification::new(encoder, Target::Number).pad_id(0);
        let fields = vec![("text", text("the the the the the")), ("label", Value::Integer(1))];
        let samples = task.encode(&record(fields)).unwrap();
        assert_eq!(samples.iter().map(|sample| task.length(sample)).collect::<Vec<_>>(), [4, 4, 3]);
        assert_eq!(
            samples.iter().map(|sample| task.begins_record(sample)).collect::<Vec<_>>(),
            [true, false, false]
        );
        let shared: Vec<_> = samples.iter().cloned().map(Arc::new).collect();
        let batch = task.collate(&drawn(samples)).unwrap();
        assert_eq!((batch.records(), batch.samples(), batch.host_first()), (1, 3, &[true, false, false][..]));
        let parts: Vec<_> = batch.parts(2).iter().map(|part| part.host_numbers().unwrap().len()).collect();
        assert_eq!(parts, [2, 1]);
        assert_eq!(batch.inputs().host_ids().len(), task.padded(&shared));
    }

    #[test]
    fn an_empty_second_text_still_makes_a_pair() {
        let fields = vec![("a", text("the")), ("b", text("")), ("label", Value::Integer(1))];
        let sample = task(Target::Number).pair("a", "b").encode(&record(fields)).unwrap().remove(0);
        assert_eq!(sample.tokens.type_ids, [0, 0, 0, 1]);
    }

    #[test]
    fn empty_inputs() {
        for target in [Target::Class(labels()), Target::Classes(labels()), Target::Number] {
            let batch = task(target).collate(&[]).unwrap();
            assert_eq!((batch.items(), batch.samples(), batch.tokens()), (0, 0, 0));
        }
        // A sample of another collator is an error.
        let sample = encode(&task(Target::Number), Value::Integer(1)).unwrap();
        let error = task(Target::Class(labels())).collate(&drawn([sample])).unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::OtherLabel { index: 0 })));
    }
}
