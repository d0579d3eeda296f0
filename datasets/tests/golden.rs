//! Compares this crate with `transformers` on the same inputs: see `golden/README.md`.

use std::{fs, path::Path, sync::Arc};

use firebrick_datasets::{Drawn, Encoder, PadTo, Padding, Record, RecordPlace, Side, Tokenizer, Value};
use serde::{Deserialize, de::DeserializeOwned};

#[path = "golden/causal_lm.rs"]
mod causal_lm;
#[path = "golden/chat.rs"]
mod chat;
#[path = "golden/classes.rs"]
mod classes;
#[path = "golden/classification.rs"]
mod classification;
#[path = "golden/encodings.rs"]
mod encodings;
#[path = "golden/jinja.rs"]
mod jinja;
#[path = "golden/masked_lm.rs"]
mod masked_lm;
#[path = "golden/multi_hot.rs"]
mod multi_hot;
#[path = "golden/packing.rs"]
mod packing;
#[path = "golden/regexes.rs"]
mod regexes;
#[path = "golden/seq2seq.rs"]
mod seq2seq;

/// Padding as written by the scripts.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Pad {
    side: Sided,
    multiple: Option<usize>,
    length: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sided {
    Left,
    Right,
}

impl From<Sided> for Side {
    fn from(sided: Sided) -> Self {
        match sided {
            Sided::Left => Self::Left,
            Sided::Right => Self::Right,
        }
    }
}

impl Pad {
    fn padding(self) -> Padding {
        let padding = Padding::default().side(self.side.into());
        let padding = padding.to(self.length.map_or(PadTo::Longest, PadTo::Length)).unwrap();
        self.multiple.map_or(padding, |multiple| padding.multiple_of(multiple).unwrap())
    }
}

/// Reads one part of a file of golden values.
fn golden<T: DeserializeOwned>(file: &str, part: &str) -> T {
    let text = fs::read_to_string(format!("tests/golden/{file}.json")).unwrap();
    let mut all: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(all[part].take()).unwrap()
}

fn tokenizer(name: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_file(format!("tests/golden/{name}/tokenizer.json")).unwrap())
}

fn encoder(name: &str, max_length: Option<usize>, stride: Option<usize>) -> Encoder {
    Encoder::new(tokenizer(name)).max_length(max_length).stride(stride)
}

/// Returns the padding token. GPT-2's tokenizer uses its end token.
fn pad_id(name: &str) -> u32 {
    let pad = if name == "bytebpe" { tokenizer(name).special().eos } else { tokenizer(name).special().pad };
    assert_eq!(pad, Some(0));
    0
}

fn record<const N: usize>(fields: [(&str, Value); N]) -> Record {
    let place = RecordPlace { file: Arc::from(Path::new("golden")), line: 1 };
    Record::new(place, fields.map(|(name, value)| (name.into(), value)).into())
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn list(texts: &[String]) -> Value {
    Value::List(texts.iter().map(|each| text(each)).collect())
}

fn drawn<S>(samples: impl IntoIterator<Item = S>) -> Vec<Drawn<S>> {
    let drawn = |(index, sample)| Drawn { epoch: 0, index, sample: Arc::new(sample) };
    (0..).zip(samples).map(drawn).collect()
}

/// Returns the samples as [`firebrick_datasets::Collator::padded`] takes them.
fn shared<S>(samples: &[Drawn<S>]) -> Vec<Arc<S>> {
    samples.iter().map(|drawn| drawn.sample.clone()).collect()
}

/// Concatenates the rows of a tensor, which must have the same length.
fn flat<T: Clone>(rows: &[Vec<T>]) -> Vec<T> {
    assert!(rows.windows(2).all(|pair| pair[0].len() == pair[1].len()));
    rows.concat()
}

/// Converts a mask to numbers.
fn numbers(mask: &[bool]) -> Vec<i32> {
    mask.iter().map(|&real| i32::from(real)).collect()
}
