//! Lookup in an embedding.

use burn::nn::Embedding;
use burn::tensor::{Int, Tensor};

/// Maps ids `[batch, length]` to rows of the table, `[batch, length, width]`, in its dtype.
pub(super) fn embedded(table: &Embedding, ids: Tensor<2, Int>) -> Tensor<3> {
    firebrick_kernels::embedding(table.weight.val(), ids)
}
