//! Rows of a table by their numbers, with a gradient that is summed by rows.
//!
//! On Flex, Burn adds the gradient of each token to its row on one core, in the dtype of the gradient: in bf16, a row that is
//! read 300 times stops growing at 256 times its first term. On GPUs it does so with one unit for each column.
//!
//! ```text
//! flex.rs  rows on all cores
//! cube.rs  rows on a device, whose gradients are sorted by row
//! ```

#[cfg(feature = "cube")]
mod cube;
mod flex;
#[cfg(test)]
mod tests;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{DType, IndexingUpdateOp, Int, Shape, Tensor};

use crate::autodiff::differentiable;
use crate::half::to_dtype;

/// Selects the rows `ids`, `[batch, length]`, of a table `[rows, width]`: `[batch, length, width]`, in its dtype.
///
/// The backward pass keeps the ids. It sorts them by row and adds the gradients of each row in f32, in a fixed order. On the
/// CPU, the result does not depend on the number of threads.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrick_kernels::embedding;
///
/// let device = Device::flex().autodiff();
/// let table = Tensor::<2>::from_data([[1.0], [2.0], [3.0]], &device).require_grad();
/// let rows = embedding(table.clone(), Tensor::<2, Int>::from_data([[2, 0, 2]], &device));
/// assert_eq!(rows.clone().into_data().iter::<f32>().collect::<Vec<_>>(), [3.0, 1.0, 3.0]);
/// let grad = table.grad(&rows.sum().backward()).unwrap();
/// assert_eq!(grad.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 0.0, 2.0]);
/// ```
///
/// # Panics
///
/// On the CPU, if an id is not a row of the table; other backends do not check.
pub fn embedding(table: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as EmbeddingOps>::select(table.into_dispatch(), ids.into_dispatch()))
}

/// Adds the rows `ids`, `[batch, length]`, of the first table and the rows `places` of the second: `[batch, length, width]`, in
/// the dtype of the tables. It equals the sum of two [`embedding`]s to the bit, in one pass over memory.
///
/// `places` is `[batch, length]`, or `[1, length]` for all rows of the batch alike. The gradients of both tables are summed as
/// those of [`embedding`].
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrick_kernels::embedding_sum;
///
/// let device = Device::flex();
/// let tokens = Tensor::<2>::from_data([[1.0], [2.0], [3.0]], &device);
/// let positions = Tensor::<2>::from_data([[0.25], [0.5]], &device);
/// let ids = Tensor::<2, Int>::from_data([[2, 0], [1, 1]], &device);
/// let places = Tensor::<2, Int>::from_data([[0, 1]], &device);
/// let rows = embedding_sum([(tokens, ids), (positions, places)]);
/// assert_eq!(rows.into_data().iter::<f32>().collect::<Vec<_>>(), [3.25, 1.5, 2.25, 2.5]);
/// ```
///
/// # Panics
///
/// If the tables differ in width or dtype, or `places` fits neither shape. On the CPU, if an id is not a row of its table; on a
/// GPU, it is read as the last row.
pub fn embedding_sum([(table, ids), (other, places)]: [(Tensor<2>, Tensor<2, Int>); 2]) -> Tensor<3> {
    assert_eq!(
        (table.dims()[1], table.dtype()),
        (other.dims()[1], other.dtype()),
        "tables whose rows are added are as wide as each other, in one dtype"
    );
    let [batch, length] = ids.dims();
    let found = places.dims();
    assert!(
        found == [batch, length] || found == [1, length],
        "places are [{batch}, {length}] or [1, {length}]; found {found:?}"
    );
    let [table, other] = [table, other].map(Tensor::into_dispatch);
    let [ids, places] = [ids, places].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as EmbeddingOps>::select_sum(table, ids, other, places))
}

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
fn added<B: EmbeddingOps>(
    [table, other]: [FloatTensor<B>; 2],
    [ids, places]: [IntTensor<B>; 2],
) -> FloatTensor<B> {
    B::float_add(B::select(table, ids), B::select(other, places))
}

/// Adds rows with Burn's operations.
fn scattered<B: Backend>(
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
