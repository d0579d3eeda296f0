//! Encoders with heads: a label for each token, a label for each text, or the masked tokens.
//!
//! ```text
//! token_classifier.rs     a label for each token
//! sequence_classifier.rs  a label for each text
//! masked_lm.rs            the masked tokens
//! ```

mod masked_lm;
mod sequence_classifier;
#[cfg(test)]
mod tests;
mod token_classifier;

use burn::module::{Module, ModuleDisplay};
use burn::nn::Embedding;
use burn::tensor::{Device, Tensor};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::Inputs;
use firebrick_strategies::{Pass, TensorPlan};
use serde::{Deserialize, Serialize};

use crate::class_names::ClassNames;
use crate::family::Family;
use crate::pretrained::KeyMap;
use crate::ragged::Tokens;
use crate::{Activation, Linear, Norm};

pub use masked_lm::MaskedLm;
pub use sequence_classifier::SequenceClassifier;
pub use token_classifier::TokenClassifier;

/// An encoder.
pub trait Encoder: Module + ModuleDisplay + Clone + 'static {
    /// The configuration of the encoder and its heads.
    type Config: Family;

    /// Creates an encoder with new weights.
    ///
    /// # Panics
    ///
    /// If the configuration's check would fail.
    fn new(config: &Self::Config, device: &Device) -> Self;

    /// The hidden states of some tokens, of their shape, in the dtype of the pass.
    fn hidden(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3>;

    /// The tokens of this rank, where ranks share those of a batch.
    fn shared(&self, inputs: &Inputs, pass: &Pass) -> Tokens {
        Tokens::shared(inputs, pass)
    }

    /// The token embedding, `[vocabulary, embedding size]`, which a masked LM also uses for its predictions.
    fn tokens(&self) -> &Embedding;

    /// The layers that ranks may divide; none if they cannot.
    fn tensor_plan(&self) -> TensorPlan;
}

/// What an encoder's heads have of their own.
pub trait Heads: Encoder {
    /// The name of the transformers class of the encoder with a head.
    fn architecture(config: &Self::Config, head: HeadOf) -> &'static str;

    /// The names of the parameters in files.
    fn keys(config: &Self::Config, head: HeadOf) -> KeyMap;

    /// The layers between the encoder and the output of a head.
    fn transform(config: &Self::Config, head: HeadOf, device: &Device) -> Option<Transform>;

    /// The output of a classifier: a logit for each class.
    fn classifier(config: &Self::Config, device: &Device) -> Linear;

    /// The probability of dropout before that layer.
    fn dropout(config: &Self::Config, head: HeadOf) -> f64;

    /// The classes of a classifier.
    fn classes(config: &Self::Config) -> &ClassNames;

    /// The part of a text that a classifier of texts reads.
    fn pooling(config: &Self::Config) -> Pooling;

    /// The probability of dropout of that part, if there is any.
    fn pooled_dropout(_: &Self::Config) -> Option<f64> {
        None
    }

    /// Whether the output of a masked LM has a bias.
    fn has_output_bias(_: &Self::Config) -> bool {
        true
    }

    /// Whether a masked LM uses the token embedding for its predictions. Others are refused.
    fn is_tied(config: &Self::Config) -> bool;

    /// See [`Trainable::divides_tokens`](crate::family::Trainable::divides_tokens), of a masked LM.
    fn divides_tokens(_: &Self::Config) -> bool {
        true
    }
}

/// What a head predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOf {
    /// A label for each token.
    Tokens,
    /// A label for each text.
    Texts,
    /// The masked tokens.
    Masked,
}

/// The part of a text that a classifier reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The first token.
    #[default]
    Cls,
    /// The mean of the tokens.
    Mean,
}

/// Layers between an encoder and the output of a head: linear, activation, norm.
#[derive(Module, Debug)]
pub struct Transform {
    pub dense: Linear,
    pub norm: Option<Norm>,
    #[module(skip)]
    pub activation: Activation,
}

impl Transform {
    fn forward<const D: usize>(&self, x: Tensor<D>, pass: &Pass) -> Tensor<D> {
        let x = self.activation.forward(self.dense.forward(x, pass));
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

/// The rows that an evaluation computes at once.
fn rows_at_once(batch: &impl Batch) -> usize {
    match batch.records() {
        0 => usize::MAX,
        records => records,
    }
}

/// Runs the model on each part of a batch that has something to run on.
///
/// Ranks that communicate run the model equally often: a rank with fewer parts runs its last one again, and drops what
/// comes out.
fn in_step<P, T>(
    parts: &[P],
    pass: &Pass,
    is_run: impl Fn(&P) -> bool,
    run: impl Fn(&P) -> T,
) -> Vec<Option<T>> {
    let own = parts.iter().filter(|part| is_run(part)).count();
    let rounds = pass.largest_of_ranks(own);
    let computed = parts.iter().map(|part| is_run(part).then(|| run(part))).collect();
    if let Some(last) = parts.iter().rfind(|part| is_run(part)) {
        (own..rounds).for_each(|_| drop(run(last)));
    }
    computed
}

/// Adds the loss of a part to those before it.
fn added(sum: Option<Tensor<1>>, loss: Tensor<1>) -> Tensor<1> {
    match sum {
        Some(sum) => sum + loss,
        None => loss,
    }
}
