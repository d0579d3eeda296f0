//! The lookup and its gradient as operations of a backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, IndexingUpdateOp, Shape};

use crate::autodiff::differentiable;
use crate::half::to_dtype;

/// Rows of tables. The defaults use Burn's operations. Call [`embedding`](crate::embedding), which takes tensors.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait EmbeddingOps: Backend {
    /// Selects the rows `ids`, `[batch, length]`, of `table`, `[rows, width]`.
    fn select(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        Self::embedding(table, ids)
    }

    /// Adds each row of `grad`, `[batch, length, width]`, to that of its id, among `rows` rows of zeros in `dtype`.
    fn scatter(
        grad: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: usize,
        dtype: DType,
    ) -> FloatTensor<Self> {
        scattered::<Self>(grad, ids, rows, dtype)
    }
}

/// Adds rows with Burn's operations.
pub(super) fn scattered<B: Backend>(
    grad: FloatTensor<B>,
    ids: IntTensor<B>,
    rows: usize,
    dtype: DType,
) -> FloatTensor<B> {
    let [batch, length, width] = grad.shape().dims();
    let device = grad.device();
    let grad = B::float_reshape(to_dtype::<B>(grad, dtype), Shape::new([batch * length, width]));
    let ids = B::int_reshape(ids, Shape::new([batch * length]));
    let zeros = B::float_zeros(Shape::new([rows, width]), &device, dtype.into());
    B::float_select_assign(zeros, 0, ids, grad, IndexingUpdateOp::Add)
}

impl<B: EmbeddingOps, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn select(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        let (rows, dtype) = (table.shape()[0], table.dtype());
        differentiable::<B, C, _, _>(
            [table],
            |[table]| (B::select(table, ids.clone()), (ids, rows, dtype)),
            |(ids, rows, dtype), grad, _| [Some(B::scatter(grad, ids, rows, dtype))],
        )
    }
}
