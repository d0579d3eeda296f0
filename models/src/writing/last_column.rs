//! The last token of each row.

use burn::tensor::Tensor;

/// Selects the last column: `[batch, length, width]` to `[batch, 1, width]`.
pub(crate) fn last_column(x: Tensor<3>) -> Tensor<3> {
    let length = x.dims()[1];
    x.narrow(1, length - 1, 1)
}
