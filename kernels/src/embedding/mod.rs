//! Rows of a table by their numbers, with a gradient that is summed by rows.
//!
//! On Flex, Burn adds the gradient of each token to its row on one core, in the dtype of the gradient: in bf16, a row that is
//! read 300 times stops growing at 256 times its first term. On GPUs it does so with one unit for each column.
//!
//! ```text
//! ops.rs   the lookup and its gradient as operations of a backend
//! flex.rs  rows on all cores
//! cube.rs  rows on a device, one cube for each
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
/// The backward pass keeps the ids. It adds the gradients of each row in f32, in a fixed order. On the CPU, it groups the ids
/// by row once, and the result does not depend on the number of threads.
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
