//! The factors beside a matrix, and how the matrix is read through them.

use std::sync::{Arc, OnceLock};

use burn::module::{Module, Param, Reparameterization};
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::cast;

use crate::StrategyError;

/// Low-rank factors beside a frozen matrix W, `[in, out]`. A layer reads
///
/// ```text
/// W + s · A·B
/// ```
///
/// instead of the matrix.
#[derive(Module, Debug)]
pub struct LoraFactors {
    /// A, `[in, rank]`.
    pub a: Param<Tensor<2>>,
    /// B, `[rank, out]`.
    pub b: Param<Tensor<2>>,
    /// s, the scale of the product.
    pub scale: f64,
    #[module(skip)]
    pub(super) dropout: Option<InputDropout>,
}

impl LoraFactors {
    /// Returns s · A·B, `[in, out]`.
    pub fn delta(&self) -> Tensor<2> {
        self.a.val().matmul(self.b.val()).mul_scalar(self.scale)
    }

    /// Returns what a layer reads instead of a matrix.
    pub(super) fn sum<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let delta = self.delta().reshape(base.shape());
        // The dtype of the factors is that of the replica.
        cast(base, FloatDType::from(delta.dtype())) + delta
    }
}

impl Reparameterization for LoraFactors {
    const NAME: &'static str = "lora";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        if let Some(dropout) = &self.dropout
            && self.a.base().is_tracked()
        {
            dropout.note_read();
        }
        self.sum(base)
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
        // The first one is reported.
        let _ = self.read_whole.0.set(self.matrix.clone());
    }
}

/// The first matrix that a layer has read together with its factors in training, although the factors' input should be
/// dropped. All factors of a model share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadWhole(Arc<OnceLock<Arc<str>>>);

impl ReadWhole {
    /// # Errors
    ///
    /// [`StrategyError::NothingDropped`] if there is one.
    pub fn check(&self) -> Result<(), StrategyError> {
        match self.0.get() {
            None => Ok(()),
            Some(parameter) => Err(StrategyError::NothingDropped { parameter: parameter.to_string() }),
        }
    }
}
