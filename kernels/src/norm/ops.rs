//! The norms as operations of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

/// What a norm divides by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// `(x - mean) / √(variance + ε) · scale + bias` (Ba et al., 2016, arXiv:1607.06450).
    Layer {
        /// Added to the variance.
        epsilon: f64,
    },
    /// `x / √(mean(x²) + ε) · scale + bias` (Zhang & Sennrich, 2019, arXiv:1910.07467).
    Rms {
        /// Added to the mean square.
        epsilon: f64,
    },
}

impl NormKind {
    pub(super) fn epsilon(self) -> f64 {
        match self {
            Self::Layer { epsilon } | Self::Rms { epsilon } => epsilon,
        }
    }

    pub(super) fn is_centered(self) -> bool {
        matches!(self, Self::Layer { .. })
    }
}

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
#[backend_extension(
    Flex: cfg(feature = "flex"),
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

#[cfg(feature = "flex")]
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
