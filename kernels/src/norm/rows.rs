//! Values and gradients of norms, with Burn's operations for backends without kernels of ours.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use crate::half::{to_dtype, wide};

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

/// The results of a norm, with what its gradient needs.
#[derive(Clone, Debug)]
pub struct Normed<B: Backend> {
    /// The sum, or the input.
    pub sum: FloatTensor<B>,
    /// Its norm.
    pub normed: FloatTensor<B>,
    /// The statistics of the rows.
    pub statistics: Statistics<B>,
}

/// The statistics of rows, `[.., 1]`, in f32 or wider.
#[derive(Clone, Debug)]
pub struct Statistics<B: Backend> {
    /// The mean, if the norm subtracts it.
    pub mean: Option<FloatTensor<B>>,
    /// The inverse of the deviation.
    pub inverse: FloatTensor<B>,
}

/// What the gradient of a norm is computed from.
pub struct Upstream<B: Backend> {
    /// The tensor that was normalized.
    pub sum: FloatTensor<B>,
    /// The statistics of its rows.
    pub statistics: Statistics<B>,
    /// `[width]`.
    pub scale: FloatTensor<B>,
    /// The gradient of the norm.
    pub grad: FloatTensor<B>,
    /// The gradient of the sum, if it was used.
    pub of_sum: Option<FloatTensor<B>>,
}

/// Gradients of a norm, where they are wanted.
pub struct Gradients<B: Backend> {
    /// Of the sum, in its dtype.
    pub sum: Option<FloatTensor<B>>,
    /// Of the scale, `[width]`, in its dtype, or in f32 or wider.
    pub scale: Option<FloatTensor<B>>,
    /// Of the bias, `[width]`, in the dtype of the scale, or in f32 or wider.
    pub bias: Option<FloatTensor<B>>,
}

/// Which gradients are wanted.
#[derive(Clone, Copy, Debug)]
pub struct WantedGradients {
    /// Whether the gradient of the sum is wanted.
    pub sum: bool,
    /// Whether the gradient of the scale is wanted.
    pub scale: bool,
    /// Whether the gradient of the bias is wanted.
    pub bias: bool,
}

/// Values and gradients of norms on one backend. The defaults use Burn's operations, in f32 if the tensors are
/// narrower.
pub trait NormRows: Backend {
    /// Returns the norm with its statistics.
    fn norm_rows(
        x: FloatTensor<Self>,
        y: Option<FloatTensor<Self>>,
        scale: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        kind: NormKind,
    ) -> Normed<Self> {
        values::<Self>(x, y, scale, bias, kind)
    }

    /// Returns the wanted gradients.
    fn norm_gradients(upstream: Upstream<Self>, wanted: WantedGradients) -> Gradients<Self> {
        gradients::<Self>(upstream, wanted)
    }
}

/// Computes the norm with Burn's operations.
pub(super) fn values<B: Backend>(
    x: FloatTensor<B>,
    y: Option<FloatTensor<B>>,
    scale: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    kind: NormKind,
) -> Normed<B> {
    let sum = match y {
        Some(y) => B::float_add(x, y),
        None => x,
    };
    let dtype = sum.dtype();
    let x = wide::<B>(sum.clone());
    let axis = x.rank() - 1;
    let (centered, mean) = match kind {
        NormKind::Layer { .. } => {
            let mean = B::float_mean_dim(x.clone(), axis);
            (B::float_sub(x, mean.clone()), Some(mean))
        }
        NormKind::Rms { .. } => (x, None),
    };
    let square = B::float_mul(centered.clone(), centered.clone());
    let square = B::float_add_scalar(B::float_mean_dim(square, axis), kind.epsilon().into());
    let deviation = B::float_sqrt(square);
    let inverse = B::float_recip(deviation.clone());
    let wide_dtype = centered.dtype();
    let scaled = B::float_mul(B::float_div(centered, deviation), row::<B>(scale, axis, wide_dtype));
    let normed = match bias {
        Some(bias) => B::float_add(scaled, row::<B>(bias, axis, wide_dtype)),
        None => scaled,
    };
    Normed { sum, normed: to_dtype::<B>(normed, dtype), statistics: Statistics { mean, inverse } }
}

/// Computes the gradients with Burn's operations. For the normalized rows n and the gradient g of the norm,
///
/// ```text
/// of the sum:    (g · scale - mean(g · scale) - n · mean(g · scale · n)) / deviation + its own
/// of the scale:  Σ g · n
/// of the bias:   Σ g
/// ```
///
/// RMS norm lacks the term of the mean.
pub(super) fn gradients<B: Backend>(upstream: Upstream<B>, wanted: WantedGradients) -> Gradients<B> {
    let Upstream { sum, statistics: Statistics { mean, inverse }, scale, grad, of_sum } = upstream;
    let dtype = sum.dtype();
    let (x, grad) = (wide::<B>(sum), wide::<B>(grad));
    let axis = x.rank() - 1;
    let wide_dtype = x.dtype();
    let width = x.shape()[axis];
    let centered = match &mean {
        Some(mean) => B::float_sub(x, mean.clone()),
        None => x,
    };
    let normal = B::float_mul(centered, inverse.clone());
    let over_rows = |x: FloatTensor<B>| {
        let rows = x.shape().num_elements() / width.max(1);
        let x = B::float_sum_dim(B::float_reshape(x, Shape::new([rows, width])), 0);
        B::float_reshape(x, Shape::new([width]))
    };
    let of_scale = wanted.scale.then(|| over_rows(B::float_mul(grad.clone(), normal.clone())));
    let of_bias = wanted.bias.then(|| over_rows(grad.clone()));
    let of_sum = wanted.sum.then(|| {
        let scaled = B::float_mul(grad, row::<B>(scale, axis, wide_dtype));
        let along = B::float_mean_dim(B::float_mul(scaled.clone(), normal.clone()), axis);
        let rest = match mean {
            Some(_) => B::float_sub(scaled.clone(), B::float_mean_dim(scaled, axis)),
            None => scaled,
        };
        let found = B::float_mul(B::float_sub(rest, B::float_mul(normal, along)), inverse);
        let found = match of_sum {
            Some(own) => B::float_add(found, wide::<B>(own)),
            None => found,
        };
        to_dtype::<B>(found, dtype)
    });
    Gradients { sum: of_sum, scale: of_scale, bias: of_bias }
}

/// Reshapes `[width]` to `[1, .., width]`.
fn row<B: Backend>(x: FloatTensor<B>, axis: usize, dtype: DType) -> FloatTensor<B> {
    let width = x.shape()[0];
    let mut shape = vec![1; axis];
    shape.push(width);
    B::float_reshape(to_dtype::<B>(x, dtype), Shape::from(shape))
}
