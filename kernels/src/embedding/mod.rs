//! Rows of a table by their numbers, with a gradient that is summed by rows.
//!
//! On Flex, Burn adds the gradient of each token to its row on one core, in the dtype of the gradient: in bf16, a row that is
//! read 300 times stops growing at 256 times its first term. On GPUs it does so with one unit for each column.
//!
//! ```text
//! ops.rs   the lookup and its gradient as operations of a backend
//! flex.rs  rows on all cores
//! cube.rs  rows on a device, whose gradients are sorted by row
//! ```

#[cfg(feature = "cube")]
mod cube;
mod flex;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

pub use ops::EmbeddingOps;

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
