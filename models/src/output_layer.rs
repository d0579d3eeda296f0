//! The output layer of a language model.

use burn::nn::Embedding;
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::{cast, matmul};

use super::Linear;

/// Returns the logits `[batch, length, vocabulary]` of `x`, `[batch, length, width]`, in the dtype of the weights: through
/// the head or, in a model without one, through the embeddings of the tokens.
pub(super) fn logits(x: Tensor<3>, tokens: &Embedding, head: Option<&Linear>) -> Tensor<3> {
    // A head in f32 gives logits in f32.
    let weight = head.map_or(&tokens.weight, |head| &head.weight).val();
    let x = cast(x, FloatDType::from(weight.dtype()));
    match head {
        Some(head) => head.forward(x),
        None => matmul(x, weight.transpose().unsqueeze()),
    }
}
