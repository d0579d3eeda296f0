//! The norms as operations of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

use super::rows::{NormKind, NormRows, Normed};

/// What to compute.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The kind of norm.
    pub kind: NormKind,
    /// Whether the second tensor is added to the first.
    pub sums: bool,
    /// Whether the bias is added.
    pub biased: bool,
}

/// Norms over the last axis. Call [`norm`](crate::norm), [`norm_and_input`](crate::norm_and_input) or
/// [`norm_of_sum`](crate::norm_of_sum), which take tensors.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
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

impl<B: NormRows> NormOps for B {
    fn norm(
        x: FloatTensor<B>,
        y: FloatTensor<B>,
        scale: FloatTensor<B>,
        bias: FloatTensor<B>,
        form: Form,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let (y, bias) = (form.sums.then_some(y), form.biased.then_some(bias));
        let Normed { sum, normed, .. } = B::norm_rows(x, y, scale, bias, form.kind);
        (sum, normed)
    }
}
