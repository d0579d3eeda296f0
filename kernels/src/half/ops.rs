//! The cast as an operation of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::FloatDType;

/// Casts between float dtypes. The default is Burn's own operation.
///
/// Call [`cast`](super::cast), which takes tensors. On backends outside this crate's features, it panics.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait HalfOps: Backend {
    /// Casts `x` to another float dtype.
    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        Self::float_cast(x, dtype)
    }
}

#[cfg(feature = "cube")]
impl HalfOps for burn::backend::Cube {}
