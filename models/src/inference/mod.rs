//! Predictions of a trained model for new texts.
//!
//! ```text
//! mod.rs       questions, answers and settings; tokens in batches, and logits back on the host
//! classes.rs   a label for each word, a class for each text, or the tokens at masked places
//! written.rs   texts that continue a prompt, or follow from a source
//! ```

mod classes;
mod written;

pub use classes::{filled_in, text_classes, word_labels};
pub use written::{continued, written_from};

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor, TensorReadError};
use firebrick::TrainError;
use firebrick_datasets::collators::{Inputs, Tokens};
use firebrick_datasets::{Encoder, Encoding, Input, Padding, Tokenizer};
use firebrick_kernels::cast;
use firebrick_strategies::Pass;
use firebrick_world::Communicator;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decoding::Decoding;

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

/// The label of a text, which the logits of a classifier score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelKind {
    /// One class.
    #[default]
    Class,
    /// Any number of classes.
    Classes,
    /// A number.
    Number,
}

impl Inference {
    /// Encodes a question; the result has several parts if the text is long and `encoder` has a stride.
    pub fn encode(&self, question: &Question) -> Result<Vec<Encoding>, TrainError> {
        Ok(match question {
            Question::Text(text) => self.encoder.encode(Input::Text(text), None)?,
            Question::Pair(first, second) => {
                self.encoder.encode(Input::Text(first), Some(Input::Text(second)))?
            }
            Question::Words(words) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.encoder.encode(Input::Words(&words), None)?
            }
        })
    }

    /// Encodes each question.
    pub fn encode_each(&self, questions: &[Question]) -> Result<Vec<Vec<Encoding>>, TrainError> {
        questions.iter().map(|question| self.encode(question)).collect()
    }

    /// The logits of each row's real tokens, `[length, classes]`, computed in batches.
    pub fn of_tokens(
        &self,
        rows: &[&Encoding],
        forward: impl Fn(&Inputs, &Pass) -> Tensor<3>,
    ) -> Result<Vec<Vec<Vec<f32>>>, TrainError> {
        let mut found = Vec::with_capacity(rows.len());
        self.each_batch(rows, forward, |inputs, [_, length, classes], numbers| {
            let of_rows =
                numbers.chunks((length * classes).max(1)).zip(inputs.host_mask().chunks(length.max(1)));
            found.extend(of_rows.map(|(numbers, real)| {
                let tokens = numbers.chunks(classes.max(1)).zip(real);
                tokens.filter(|(_, real)| **real).map(|(logits, _)| logits.to_vec()).collect::<Vec<_>>()
            }));
        })?;
        Ok(found)
    }

    /// The logits of whole rows, computed in batches.
    pub fn of_rows(
        &self,
        rows: &[&Encoding],
        forward: impl Fn(&Inputs, &Pass) -> Tensor<2>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut found = Vec::with_capacity(rows.len());
        self.each_batch(rows, forward, |_, [_, classes], numbers| {
            found.extend(numbers.chunks(classes.max(1)).map(<[f32]>::to_vec));
        })?;
        Ok(found)
    }

    /// Calls `take` with each batch of rows and its logits, in f32 on the host.
    fn each_batch<const D: usize>(
        &self,
        rows: &[&Encoding],
        forward: impl Fn(&Inputs, &Pass) -> Tensor<D>,
        mut take: impl FnMut(&Inputs, [usize; D], &[f32]),
    ) -> Result<(), TrainError> {
        let (pad, pass) = (self.tokenizer.special().pad.unwrap_or(0), Pass::evaluate(&self.device));
        for some in rows.chunks(self.rows.max(1)) {
            let tokens = some.iter().map(|row| Tokens::of((*row).clone(), self.encoder.tokenizer()));
            let tokens: Vec<Tokens> = tokens.collect();
            let inputs = Inputs::new(&tokens.iter().collect::<Vec<_>>(), &self.padding, pad)?;
            let logits = cast(forward(&inputs, &pass), FloatDType::F32);
            let numbers: Vec<f32> =
                logits.clone().try_into_data().map_err(TensorReadError::from)?.iter().collect();
            take(&inputs, logits.dims(), &numbers);
        }
        Ok(())
    }
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
