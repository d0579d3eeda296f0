//! Labels of words and of texts.

use firebrick_datasets::collators::{
    Inputs, LabeledTokens, Labels, SequenceClassification, Subwords, Target, TokenClassification, Tokens,
};
use firebrick_datasets::{Batch, Collator, Value};
use serde::Deserialize;

use crate::{Pad, Sided, drawn, encoder, flat, golden, list, numbers, pad_id, record, shared, text};

/// The inputs of `transformers`.
#[derive(Deserialize)]
pub(crate) struct Theirs {
    input_ids: Vec<Vec<i32>>,
    attention_mask: Vec<Vec<i32>>,
    token_type_ids: Option<Vec<Vec<i32>>>,
}

impl Theirs {
    #[track_caller]
    pub(crate) fn assert_equal(&self, inputs: &Inputs, what: &str) {
        assert_eq!(inputs.shape(), [self.input_ids.len(), self.input_ids[0].len()], "{what}");
        assert_eq!(inputs.host_ids(), flat(&self.input_ids), "ids: {what}");
        assert_eq!(numbers(inputs.host_mask()), flat(&self.attention_mask), "mask: {what}");
        // `transformers` gives models without segments none; here the tokenizer's are always present.
        if let Some(segments) = &self.token_type_ids {
            assert_eq!(inputs.host_type_ids(), flat(segments), "segments: {what}");
        }
    }
}

#[derive(Deserialize)]
struct OfWords {
    names: Vec<String>,
    words: Vec<Vec<String>>,
    tags: Vec<Vec<String>>,
    cases: Vec<OfWordsCase>,
}

#[derive(Deserialize)]
struct OfWordsCase {
    tokenizer: String,
    subwords: String,
    max_length: Option<usize>,
    stride: Option<usize>,
    cut: Sided,
    pad: Pad,
    labels: Vec<Vec<i32>>,
    #[serde(flatten)]
    inputs: Theirs,
}

#[test]
fn token_classification() {
    let all: OfWords = golden("collators", "token_classification");
    assert_eq!(all.cases.len(), 3 * (6 + 6 * 2));
    for case in &all.cases {
        let subwords = match case.subwords.as_str() {
            "first" => Subwords::First,
            "inside" => Subwords::Inside,
            _ => Subwords::All,
        };
        let what = format!(
            "{} {subwords:?} {:?} {:?} {:?} {:?}",
            case.tokenizer, case.max_length, case.stride, case.cut, case.pad
        );
        let encoder = encoder(&case.tokenizer, case.max_length, case.stride).cut(case.cut.into());
        let task = TokenClassification::new(encoder.clone(), Labels::new(all.names.clone()).unwrap())
            .subwords(subwords)
            .unwrap()
            .padding(case.pad.padding())
            .pad_id(pad_id(&case.tokenizer));
        let mut samples = vec![];
        for (words, tags) in all.words.iter().zip(&all.tags) {
            let encoded = task.encode(&record([("words", list(words)), ("labels", list(tags))])).unwrap();
            // A deliberate difference: without words, there is no sample.
            assert_eq!(encoded.is_empty(), words.is_empty(), "{what}");
            samples.extend(encoded);
            if words.is_empty() {
                let empty = encoder.encode(firebrick_datasets::Input::Words(&[]), None).unwrap().remove(0);
                let empty = Tokens::of(empty, encoder.tokenizer());
                samples.push(LabeledTokens::new(empty.clone(), vec![-100; empty.len()]));
            }
        }
        let samples = drawn(samples);
        let batch = task.collate(&samples).unwrap();
        case.inputs.assert_equal(batch.inputs(), &what);
        assert_eq!(batch.host_labels(), flat(&case.labels), "labels: {what}");
        assert_eq!(task.padded(&shared(&samples)), batch.host_labels().len(), "{what}");
        let counted = case.labels.concat().iter().filter(|&&label| label != -100).count();
        assert_eq!(batch.items(), counted, "{what}");
    }
}

#[derive(Deserialize)]
struct OfTexts {
    pairs: Vec<(String, String)>,
    cases: Vec<OfTextsCase>,
}

#[derive(Deserialize)]
struct OfTextsCase {
    tokenizer: String,
    paired: bool,
    max_length: Option<usize>,
    cut: Sided,
    pad: Pad,
    target: Vec<f32>,
    labels: Vec<f32>,
    #[serde(flatten)]
    inputs: Theirs,
}

#[test]
fn sequence_classification() {
    let all: OfTexts = golden("collators", "sequence_classification");
    assert_eq!(all.cases.len(), 3 * 6 * 4);
    for case in &all.cases {
        let what =
            format!("{} {} {:?} {:?} {:?}", case.tokenizer, case.paired, case.max_length, case.cut, case.pad);
        let whole = case.target.iter().all(|number| number.fract() == 0.0);
        let target =
            if whole { Target::Class(Labels::new(["a", "b", "c"]).unwrap()) } else { Target::Number };
        let encoder = encoder(&case.tokenizer, case.max_length, None).cut(case.cut.into());
        let task = SequenceClassification::new(encoder, target)
            .padding(case.pad.padding())
            .pad_id(pad_id(&case.tokenizer));
        let task = if case.paired { task.pair("first", "second") } else { task.field("first") };
        let samples = all.pairs.iter().zip(&case.target).map(|((first, second), &label)| {
            let label = if whole { Value::Integer(label as i64) } else { Value::Float(label.into()) };
            let record = record([("first", text(first)), ("second", text(second)), ("label", label)]);
            let mut samples = task.encode(&record).unwrap();
            assert_eq!(samples.len(), 1);
            samples.remove(0)
        });
        let samples = drawn(samples);
        let batch = task.collate(&samples).unwrap();
        case.inputs.assert_equal(batch.inputs(), &what);
        assert_eq!(task.padded(&shared(&samples)), batch.inputs().host_ids().len(), "{what}");
        match batch.host_numbers() {
            Some(numbers) => assert_eq!(numbers, case.labels, "{what}"),
            None => {
                let classes = batch.host_classes().unwrap();
                assert_eq!(
                    classes.iter().map(|&class| class as f32).collect::<Vec<_>>(),
                    case.labels,
                    "{what}"
                );
            }
        }
    }
}
