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

    /// Adds the rows `ids`, `[batch, length]`, of `table` and the rows `places` of `other`, which has as wide rows of the same
    /// dtype. If `places` is `[1, length]`, it is that of each row of `ids`.
    fn select_sum(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        other: FloatTensor<Self>,
        places: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        added::<Self>([table, other], [ids, places])
    }

    /// Adds each row of `grad`, `[batch, length, width]`, to that of its id, among `rows` rows of zeros in `dtype`. `ids` is
    /// `[batch, length]`, or `[1, length]` for all rows of the batch alike.
    fn scatter(
        grad: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: usize,
        dtype: DType,
    ) -> FloatTensor<Self> {
        scattered::<Self>(grad, ids, rows, dtype)
    }

    /// Does the same for two tables whose rows were added: `rows` are those of each. The first ids are `[batch, length]`.
    fn scatter_both(
        grad: FloatTensor<Self>,
        ids: IntTensor<Self>,
        places: IntTensor<Self>,
        rows: [usize; 2],
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (Self::scatter(grad.clone(), ids, rows[0], dtype), Self::scatter(grad, places, rows[1], dtype))
    }
}

/// Adds the rows of two tables with Burn's operations.
pub(super) fn added<B: EmbeddingOps>(
    [table, other]: [FloatTensor<B>; 2],
    [ids, places]: [IntTensor<B>; 2],
) -> FloatTensor<B> {
    B::float_add(B::select(table, ids), B::select(other, places))
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
    let grad = to_dtype::<B>(grad, dtype);
    let (grad, count) = match ids.shape()[0] < batch {
        true => (B::float_sum_dim(grad, 0), length),
        false => (grad, batch * length),
    };
    let grad = B::float_reshape(grad, Shape::new([count, width]));
    let ids = B::int_reshape(ids, Shape::new([count]));
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

    fn select_sum(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        other: FloatTensor<Self>,
        places: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let rows = [table.shape()[0], other.shape()[0]];
        let dtype = table.dtype();
        differentiable::<B, C, _, _>(
            [table, other],
            |[table, other]| {
                let sum = B::select_sum(table, ids.clone(), other, places.clone());
                (sum, ([ids, places], rows, dtype))
            },
            |([ids, places], rows, dtype), grad, wanted| match wanted {
                [true, true] => {
                    let (of_table, of_other) = B::scatter_both(grad, ids, places, rows, dtype);
                    [Some(of_table), Some(of_other)]
                }
                [to_table, to_other] => {
                    let of_table = to_table.then(|| B::scatter(grad.clone(), ids, rows[0], dtype));
                    [of_table, to_other.then(|| B::scatter(grad, places, rows[1], dtype))]
                }
            },
        )
    }
}
