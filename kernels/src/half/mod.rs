//! Casts between half precision and f32, on all cores of the CPU and in vectors.
//!
//! ```text
//! flex.rs  conversion between half precision and f32 on Flex, for any view
//! bf16.rs  the two conversions of bf16, in vectors
//! ```

pub(crate) mod bf16;
mod flex;
#[cfg(test)]
mod tests;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::autodiff::differentiable;

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

/// Casts between float dtypes. The default is Burn's own operation.
///
/// Call [`cast`], which takes tensors. On backends outside this crate's features, it panics.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait HalfOps: Backend {
    /// Casts `x` to another float dtype.
    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        Self::float_cast(x, dtype)
    }
}

#[cfg(feature = "cube")]
impl HalfOps for burn::backend::Cube {}

impl<B: HalfOps, C: CheckpointStrategy> HalfOps for Autodiff<B, C> {
    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let from = FloatDType::from(x.dtype());
        differentiable::<B, C, _, _>(
            [x],
            |[x]| (B::fast_cast(x, dtype), from),
            |from, grad, _| [Some(B::fast_cast(grad, from))],
        )
    }
}

/// Casts to f32 with Burn's operations if the tensor is narrower.
pub(crate) fn wide<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    match x.dtype() {
        DType::F16 | DType::BF16 => B::float_cast(x, FloatDType::F32),
        _ => x,
    }
}

/// Casts to `dtype` with Burn's operations.
pub(crate) fn to_dtype<B: Backend>(x: FloatTensor<B>, dtype: impl Into<DType>) -> FloatTensor<B> {
    let dtype = dtype.into();
    if x.dtype() == dtype { x } else { B::float_cast(x, dtype.into()) }
}
