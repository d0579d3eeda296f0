//! Helpers for the tests of this folder.

use std::{path::Path, sync::Arc};

use crate::{Drawn, Record, RecordPlace, Tokenizer, Value};

/// BERT's kind of tokenizer: `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]` are 0 to 4.
pub(super) fn wordpiece() -> Arc<Tokenizer> {
    tokenizer("wordpiece")
}

/// GPT-2's kind of tokenizer: `<|endoftext|>` and `<mask>` are 0 and 1.
pub(super) fn bytebpe() -> Arc<Tokenizer> {
    tokenizer("bytebpe")
}

/// T5's kind of tokenizer: `<pad>`, `</s>` and `<unk>` are 0 to 2.
pub(super) fn unigram() -> Arc<Tokenizer> {
    tokenizer("unigram")
}

fn tokenizer(name: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_file(format!("tests/golden/{name}/tokenizer.json")).unwrap())
}

pub(crate) fn record(fields: Vec<(&str, Value)>) -> Record {
    let place = RecordPlace { file: Arc::from(Path::new("data.jsonl")), line: 1 };
    Record::new(place, fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

pub(crate) fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

pub(super) fn list(texts: &[&str]) -> Value {
    Value::List(texts.iter().map(|&each| text(each)).collect())
}

/// Draws the samples in epoch 0.
pub(super) fn drawn<S>(samples: impl IntoIterator<Item = S>) -> Vec<Drawn<S>> {
    let drawn = |(index, sample)| Drawn { epoch: 0, index, sample: Arc::new(sample) };
    (0..).zip(samples).map(drawn).collect()
}
