//! The output layer of a language model.

use burn::nn::Embedding;
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::{Head, HeadWeight, cast, head_loss};
use firebrick_strategies::Pass;

use super::Linear;

/// Returns the output layer: the head or, in a model without one, the embeddings of the tokens.
pub(super) fn output_layer(tokens: &Embedding, head: Option<&Linear>) -> Head {
    match head {
        Some(head) => {
            let weight = head.weight.val();
            let dtype = FloatDType::from(weight.dtype());
            let bias = head.bias.as_ref().map(|bias| cast(bias.val(), dtype));
            Head { weight: HeadWeight::Linear(weight), bias, cap: None }
        }
        None => Head { weight: HeadWeight::Embedding(tokens.weight.val()), bias: None, cap: None },
    }
}

/// Returns the loss of `x`, `[batch, length, width]`, summed over the positions. There is one label for each position,
/// row by row. Labels are smoothed by the [share](Pass::label_smoothing) of the pass.
pub(super) fn output_loss(x: Tensor<3>, head: &Head, labels: &[i32], pass: &Pass) -> Tensor<1> {
    head_loss(x.flatten(0, 1), head, labels, pass.label_smoothing())
}
