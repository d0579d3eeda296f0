//! The cast as an operation of a backend, with its gradient, which is a cast back.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::FloatDType;

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
