//! Rotary positions: pairs of a head's numbers are rotated by angles that grow with the position, in one pass.
//!
//! ```text
//! ops.rs   the rotation as an operation of a backend, with its gradient
//! flex.rs  rows on all cores, of any view
//! cube.rs  pairs on a device, of any view
//! ```

#[cfg(feature = "cube")]
mod cube;
mod flex;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use ops::RotaryOps;

/// Rotates `x`, `[batch, heads, length, size]`, by the angles of `cos` and `sin`, in f32 (Su et al., 2021,
/// arXiv:2104.09864). Returns the shape and dtype of `x`.
///
/// A pair is a number in the first half of the last axis and the number at the same place in the second half, as in
/// Hugging Face's layout. `cos` and `sin` are `[batch, 1, length, size / 2]` in f32, or with 1 row for the whole batch.
/// They are constants: they have no gradient. The backward pass keeps them, and nothing else.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::rotary;
///
/// let device = Device::flex();
/// let x = Tensor::<4>::from_data([[[[1.0, 2.0]]]], &device);
/// // A quarter of a turn.
/// let (cos, sin) = (Tensor::zeros([1, 1, 1, 1], &device), Tensor::ones([1, 1, 1, 1], &device));
/// assert_eq!(rotary(x, cos, sin).into_data().iter::<f32>().collect::<Vec<_>>(), [-2.0, 1.0]);
/// ```
///
/// # Panics
///
/// If the shapes do not fit, or `size` is odd.
pub fn rotary(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [batch, _, length, size] = x.dims();
    let [rows, ..] = cos.dims();
    let fits = size % 2 == 0 && (rows == batch || rows == 1) && cos.dims() == [rows, 1, length, size / 2];
    assert!(
        fits && sin.dims() == cos.dims(),
        "angles of {:?} are [{batch} or 1, 1, {length}, {size} / 2]; found {:?} and {:?}",
        x.dims(),
        cos.dims(),
        sin.dims(),
    );
    let [x, cos, sin] = [x, cos, sin].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as RotaryOps>::rotated(x, cos, sin, false))
}
