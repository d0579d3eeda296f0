//! Predictions of a trained model for new texts.
//!
//! ```text
//! mod.rs       questions, answers and settings
//! rows.rs      tokens in batches, and logits back on the host
//! label_kind.rs  a class, several classes or a number
//! classes.rs   a label for each word, or a class for each text
//! masked.rs    the tokens at masked places
//! written.rs   texts that continue a prompt, or follow from a source
//! ```

mod classes;
mod label_kind;
mod masked;
mod rows;
mod written;

pub use classes::{text_classes, word_labels};
pub use label_kind::LabelKind;
pub use masked::filled_in;
pub use written::{continued, written_from};

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use firebrick_datasets::{Encoder, Padding, Tokenizer};
use firebrick_strategies::Pass;
use firebrick_world::Communicator;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::decoding::Decoding;
use firebrick::TrainError;

/// A text to predict for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Question {
    /// A text.
    Text(String),
    /// A pair of texts.
    Pair(String, String),
    /// A text split into words, each of which gets a label.
    Words(Vec<String>),
}

/// The prediction for one text, as fields of a JSON object. `predicted` is always present.
pub type Answer = Map<String, Value>;

/// The settings of a prediction.
#[derive(Clone)]
pub struct Inference {
    /// Turns texts into tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Encodes and cuts texts.
    pub encoder: Encoder,
    /// How rows of a batch are padded.
    pub padding: Padding,
    /// The number of rows per batch.
    pub rows: usize,
    /// The device of the model.
    pub device: Device,
    /// The class names, if there are any.
    pub labels: Vec<String>,
    /// What the logits of a classifier score.
    pub kind: LabelKind,
    /// How to generate texts.
    pub decoding: Decoding,
    /// The start token of a decoder with an encoder.
    pub start: u32,
    /// The number of the first question among all questions.
    pub first: u64,
    /// The ranks that share the model, and each rank's evaluation pass, for a model that generates text. All ranks
    /// get the same number of questions.
    pub among: Option<(Communicator, Pass)>,
}

/// A model that makes predictions.
pub trait Answers: Module {
    /// Answers each question, in order.
    ///
    /// # Errors
    ///
    /// The tokenizer or the device fails.
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError>;
}

/// Builds an answer from its fields.
fn answer<const N: usize>(fields: [(&str, Value); N]) -> Answer {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Rounds a probability to six digits for output; more would be meaningless.
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

/// The index of the largest number; the first of equal ones.
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
