//! Casts between half precision and f32, on all cores of the CPU and in vectors.
//!
//! ```text
//! ops.rs   the cast as an operation of a backend, with its gradient
//! flex.rs  conversion between half precision and f32 on Flex, for any view
//! bf16.rs  the two conversions of bf16, in vectors
//! ```

pub(crate) mod bf16;
mod flex;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{FloatDType, Tensor};

pub use ops::HalfOps;
pub(crate) use ops::{to_dtype, wide};

/// Casts the tensor to another float dtype, rounded to nearest, ties to even.
///
/// Differs from [`Tensor::cast`] only in speed: on Flex, between f32 and half precision, it runs on all cores in
/// vectors, forward and backward.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
///
/// let x = Tensor::<1>::from_data([1.0, 1.001], &Device::flex());
/// let narrow = firebrick_kernels::cast(x, FloatDType::BF16);
/// assert_eq!(narrow.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 1.0]);
/// ```
pub fn cast<const D: usize>(x: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if x.dtype() == dtype.into() {
        return x;
    }
    Tensor::from_dispatch(<Dispatch as HalfOps>::fast_cast(x.into_dispatch(), dtype))
}
