//! The norms as operations of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

use super::kind::Form;

/// Norms over the last axis. Call [`norm`](crate::norm), [`norm_and_input`](crate::norm_and_input) or
/// [`norm_of_sum`](crate::norm_of_sum), which take tensors.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait NormOps: Backend {
    /// Returns the sum of `x` and `y`, or `x`, and its norm. `y` is read if the form sums, and `bias` if it is biased.
    fn norm(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        form: Form,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

#[cfg(feature = "cube")]
impl NormOps for burn::backend::Cube {
    fn norm(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        form: Form,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        super::rows::plain::<Self>(x, y, scale, bias, form)
    }
}

impl NormOps for burn::backend::Flex {
    fn norm(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        form: Form,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        super::rows::plain::<Self>(x, y, scale, bias, form)
    }
}
