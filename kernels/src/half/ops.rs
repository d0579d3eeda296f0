//! The cast as an operation of a backend, with its gradient, which is a cast back.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType};

use crate::autodiff::differentiable;

/// Casts between float dtypes. The default is Burn's own operation.
///
/// Call [`cast`](super::cast), which takes tensors. On backends outside this crate's features, it panics.
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
