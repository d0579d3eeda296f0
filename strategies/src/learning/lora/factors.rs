//! The factors beside a matrix, and how the matrix is read through them.

use std::sync::Arc;

use burn::module::{Module, Param, Reparameterization};
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::cast;

use crate::PackedBase;
use crate::contract::ReadWhole;

/// Low-rank factors beside a frozen matrix W, `[in, out]`. A layer reads
///
/// ```text
/// W + s · A·B
/// ```
///
/// instead of the matrix, or with [magnitudes](Self::magnitude) m, `[out]`,
///
/// ```text
/// m · (W + s · A·B) / ‖W + s · A·B‖
/// ```
///
/// where the norm is that of each column, and a constant of the gradient, as in section 4.3 of the paper (Liu et al.,
/// 2024, arXiv:2402.09353).
#[derive(Module, Debug)]
pub struct LoraFactors {
    /// A, `[in, rank]`.
    pub a: Param<Tensor<2>>,
    /// B, `[rank, out]`.
    pub b: Param<Tensor<2>>,
    /// s, the scale of the product.
    pub scale: f64,
    /// m, `[out]`: the norms of the columns, which [`Lora::dora`](crate::Lora::dora) trains apart from their directions.
    pub magnitude: Option<Param<Tensor<1>>>,
    /// The matrix itself, where [`Quantize`](crate::Quantize) has packed it.
    #[module(skip)]
    pub(super) base: PackedBase,
    #[module(skip)]
    pub(super) dropout: Option<InputDropout>,
}

impl LoraFactors {
    /// Returns s · A·B, `[in, out]`.
    pub fn delta(&self) -> Tensor<2> {
        self.a.val().matmul(self.b.val()).mul_scalar(self.scale)
    }

    /// Returns the matrix W in this dtype. `stored` is the value of its parameter.
    pub(super) fn matrix<const D: usize>(&self, stored: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
        self.base.read(&stored, dtype).unwrap_or_else(|| dense(stored, dtype))
    }

    /// Returns what a layer reads instead of a matrix.
    pub(super) fn read<const D: usize>(&self, stored: Tensor<D>) -> Tensor<D> {
        let delta = self.delta();
        // The dtype of the factors is that of the replica.
        let matrix = self.matrix(stored, FloatDType::from(delta.dtype()));
        let delta = delta.reshape(matrix.shape());
        let sum = matrix + delta;
        match &self.magnitude {
            None => sum,
            Some(magnitude) => {
                let gains = Self::gains(magnitude, &sum);
                sum * gains
            }
        }
    }

    /// Returns the factors m / ‖W + s · A·B‖ of the columns of this sum, `[1, .., out]`, in its dtype.
    pub(super) fn gains<const D: usize>(magnitude: &Param<Tensor<1>>, sum: &Tensor<D>) -> Tensor<D> {
        let norms = norms(sum.clone().detach());
        let mut shape = [1; D];
        shape[D - 1] = magnitude.shape()[0];
        let magnitudes = cast(magnitude.val(), FloatDType::F32).reshape(shape);
        cast(magnitudes / norms, FloatDType::from(sum.dtype()))
    }
}

/// Returns a matrix, perhaps a quantized one, in this dtype.
pub(super) fn dense<const D: usize>(matrix: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    let matrix = if matrix.dtype().is_float() { matrix } else { matrix.dequantize() };
    cast(matrix, dtype)
}

/// Returns the norms of the columns of a matrix `[in, .., out]`, `[1, .., out]` in f32. That of a column of zeros is
/// the smallest positive number, so that it can be divided by.
pub(super) fn norms<const D: usize>(matrix: Tensor<D>) -> Tensor<D> {
    cast(matrix, FloatDType::F32).square().sum_dim(0).sqrt().clamp_min(f32::MIN_POSITIVE)
}

impl Reparameterization for LoraFactors {
    const NAME: &'static str = "lora";

    fn apply<const D: usize>(&self, stored: Tensor<D>) -> Tensor<D> {
        if let Some(dropout) = &self.dropout
            && self.a.base().is_tracked()
        {
            dropout.note_read();
        }
        self.read(stored)
    }
}

/// Drops elements of the input of a matrix's factors in training.
#[derive(Clone, Debug)]
pub(super) struct InputDropout {
    pub prob: f64,
    matrix: Arc<str>,
    read_whole: ReadWhole,
}

impl InputDropout {
    /// Drops with this probability before the factors of the matrix at a path.
    pub fn new(prob: f64, matrix: &str, read_whole: ReadWhole) -> Self {
        Self { prob, matrix: matrix.into(), read_whole }
    }

    /// Notes that a layer has read the sum of the matrix and the product for gradients, so that nothing was dropped.
    fn note_read(&self) {
        self.read_whole.note(&self.matrix);
    }
}
