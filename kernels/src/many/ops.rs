//! The passes over one tensor as operations of a backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, backend_extension};

use super::plain;

/// Passes over the elements of a tensor. The defaults are Burn's own operations.
///
/// Call [`sum_of_squares`](super::sum_of_squares) and [`scale_all`](super::scale_all), which take the tensors of a model. On
/// backends outside this crate's features, these panic.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait ManyOps: Backend {
    /// Returns the sum of the squares of all elements, `[1]`, in f32.
    fn squared_sum(x: FloatTensor<Self>) -> FloatTensor<Self> {
        plain::squared_sum::<Self>(x)
    }

    /// Multiplies a tensor by the factor, `[1]`, in f32 if the tensor is narrower, so that it is rounded once.
    fn scaled(x: FloatTensor<Self>, factor: FloatTensor<Self>) -> FloatTensor<Self> {
        plain::scaled::<Self>(x, factor)
    }
}

#[cfg(feature = "cube")]
impl ManyOps for burn::backend::Cube {}

impl<B: Backend, C: CheckpointStrategy> ManyOps for Autodiff<B, C> {}
