//! Lookup in an embedding.

use burn::nn::Embedding;
use burn::tensor::{FloatDType, Int, Tensor};
use firebrick_kernels::{cast, embedding_sum};

/// Maps ids `[batch, length]` to rows of the table, `[batch, length, width]`, in its dtype.
pub(super) fn embedded(table: &Embedding, ids: Tensor<2, Int>) -> Tensor<3> {
    firebrick_kernels::embedding(table.weight.val(), ids)
}

/// Adds the rows of two tables, `[batch, length, width]`, in `dtype`: those of the ids `[batch, length]` in the first, and of the
/// ids `[batch, length]` or `[1, length]` in the second.
pub(super) fn embedded_sum(tables: [(&Embedding, Tensor<2, Int>); 2], dtype: FloatDType) -> Tensor<3> {
    let [(table, ids), (other, places)] = tables.map(|(table, ids)| (table.weight.val(), ids));
    if [&table, &other].iter().all(|table| table.dtype() == dtype.into()) {
        return embedding_sum([(table, ids), (other, places)]);
    }
    // Tables that a strategy keeps in another dtype.
    let [rows, others] = [(table, ids), (other, places)]
        .map(|(table, ids)| cast(firebrick_kernels::embedding(table, ids), dtype));
    rows + others
}
