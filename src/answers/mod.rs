//! What a trained model says of texts that it has not learned from.
//!
//! ```text
//! mod.rs       questions, answers, and with what they are asked
//! rows.rs      tokens in batches, and logits back on the host
//! classes.rs   a label of each word, a class of each text
//! masked.rs    what stands where a token is hidden
//! written.rs   what follows a text, or is made of it
//! ```

mod classes;
mod masked;
mod rows;
mod written;

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use firebrick_datasets::{Encoder, Padding, Tokenizer};
use firebrick_strategies::{Communicator, Pass};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::TrainError;
use crate::decoding::Decoding;

/// A text that a model is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Question {
    /// A text.
    Text(String),
    /// Two texts that belong together.
    Pair(String, String),
    /// A text in words, each of which has a label.
    Words(Vec<String>),
}

/// What a model says of one text, as fields of a JSON object. `predicted` is always there.
pub(crate) type Answer = Map<String, Value>;

/// With what a model is asked.
#[derive(Clone)]
pub(crate) struct Inference {
    pub tokenizer: Arc<Tokenizer>,
    /// How texts are cut.
    pub encoder: Encoder,
    pub padding: Padding,
    /// Rows that go through the model at once.
    pub rows: usize,
    pub device: Device,
    /// The names of the classes, where there are some.
    pub labels: Vec<String>,
    /// What a score is of: one class out of all, any of them, or a number.
    pub kind: Kind,
    /// How texts are written.
    pub decoding: Decoding,
    /// The token that a decoder with an encoder starts from.
    pub start: u32,
    /// The number of the first question among all.
    pub first: u64,
    /// The ranks that share the model, and how each reads its part, for a model that writes: all are asked as many
    /// questions.
    pub among: Option<(Communicator, Pass)>,
}

/// What the logits of a classifier are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of one class out of all.
    Class,
    /// Of each class by itself.
    Classes,
    /// A number.
    Number,
}

/// A model that can be asked.
pub(crate) trait Answers: Module {
    /// An answer to each question, in order.
    ///
    /// # Errors
    ///
    /// The tokenizer fails, or the device does.
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError>;
}

/// An answer out of its fields.
fn answer<const N: usize>(fields: [(&str, Value); N]) -> Answer {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A probability as it is written: six digits are more than a model knows.
fn rounded(share: f64) -> Value {
    ((share * 1e6).round() / 1e6).into()
}

/// `softmax` of logits, in f64.
fn shares(logits: &[f32]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|logit| f64::from(logit - highest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// The place of the largest number, the first of equal ones.
fn largest(numbers: &[f64]) -> usize {
    let better = |best: usize, at: usize| if numbers[at] > numbers[best] { at } else { best };
    (0..numbers.len()).reduce(better).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_large_logits_do_no_harm() {
        let found = shares(&[1000.0, 1000.0, f32::NEG_INFINITY]);
        assert_eq!(found, [0.5, 0.5, 0.0]);
        assert_eq!([largest(&found), largest(&[0.1, 0.7, 0.2])], [0, 1]);
        assert_eq!(rounded(2.0 / 3.0), serde_json::json!(0.666667));
    }
}
