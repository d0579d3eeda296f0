//! Layer normalisation, and that by the root mean square, which are correct in half precision.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::{NormKind, cast, norm, norm_and_input, norm_of_sum};
use firebrick_strategies::Pass;

/// Layer normalisation over the last axis (Ba et al., 2016, arXiv:1607.06450).
///
/// Mean and variance are computed in f32, and the result is cast back to the input's dtype, as under
/// `torch.autocast`: bf16 keeps only 8 bits of a sum.
#[derive(Module, Debug)]
pub struct Norm {
    scale: Param<Tensor<1>>,
    bias: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

impl Norm {
    /// Creates a norm with scale 1 and, if `bias` is set, bias 0, each of shape `[width]`. Epsilon, which is added to
    /// the variance, is 1e-5.
    pub fn new(width: usize, bias: bool, device: &Device) -> Self {
        Self {
            scale: Initializer::Ones.init([width], device),
            bias: bias.then(|| Initializer::Zeros.init([width], device)),
            epsilon: 1e-5,
        }
    }

    /// Sets the number that is added to the variance.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// Normalises `[.., width]` to the same shape, in the dtype of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        norm(x, self.scale.val(), self.bias(), self.kind())
    }

    /// Returns `x`, to be used in its place, and `x` normalised: the gradients of both are added in one pass.
    pub fn with_input<const D: usize>(&self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        norm_and_input(x, self.scale.val(), self.bias(), self.kind())
    }

    /// Returns `x + y` and that sum normalised, in one pass.
    ///
    /// # Panics
    ///
    /// If `x` and `y` differ in shape or dtype.
    pub fn of_sum<const D: usize>(&self, x: Tensor<D>, y: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        norm_of_sum(x, y, self.scale.val(), self.bias(), self.kind())
    }

    fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(|bias| bias.val())
    }

    fn kind(&self) -> NormKind {
        NormKind::Layer { epsilon: self.epsilon }
    }
}

/// `x / √(mean(x²) + ε) · scale` over the last axis, without a mean and without a bias (Zhang & Sennrich, 2019,
/// arXiv:1910.07467).
///
/// It computes in f32 and casts the result back to the input's dtype.
#[derive(Module, Debug)]
pub struct RmsNorm {
    scale: Param<Tensor<1>>,
    epsilon: f64,
    /// Whether 1 is added to the scale.
    zero_centered: bool,
}

impl RmsNorm {
    /// Creates a norm with scale 1 of shape `[width]`; `epsilon` is added to the mean square.
    pub fn new(width: usize, epsilon: f64, device: &Device) -> Self {
        Self { scale: Initializer::Ones.init([width], device), epsilon, zero_centered: false }
    }

    /// Creates a norm that multiplies by `1 + scale`, as in Gemma: the parameter starts at 0. The sum is computed in f32.
    pub fn zero_centered(width: usize, epsilon: f64, device: &Device) -> Self {
        Self { scale: Initializer::Zeros.init([width], device), epsilon, zero_centered: true }
    }

    /// Normalises `[.., width]` to the same shape, in the dtype of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        norm(x, self.factors(), None, self.kind())
    }

    /// Like [`forward`](Self::forward), of this rank's share of heads where [ranks share the layer](Pass::shares_layers): the
    /// scale, which all heads have in common, has the gradients of all of them.
    pub fn of_share<const D: usize>(&self, x: Tensor<D>, pass: &Pass) -> Tensor<D> {
        norm(x, pass.shared_by_heads(self.factors()), None, self.kind())
    }

    /// Returns `x`, to be used in its place, and `x` normalised: the gradients of both are added in one pass.
    pub fn with_input<const D: usize>(&self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        norm_and_input(x, self.factors(), None, self.kind())
    }

    /// Returns `x + y` and that sum normalised, in one pass.
    ///
    /// # Panics
    ///
    /// If `x` and `y` differ in shape or dtype.
    pub fn of_sum<const D: usize>(&self, x: Tensor<D>, y: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        norm_of_sum(x, y, self.factors(), None, self.kind())
    }

    /// What normalised numbers are multiplied by.
    fn factors(&self) -> Tensor<1> {
        match self.zero_centered {
            true => cast(self.scale.val(), FloatDType::F32) + 1.0,
            false => self.scale.val(),
        }
    }

    fn kind(&self) -> NormKind {
        NormKind::Rms { epsilon: self.epsilon }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;
    use crate::testing;

    #[test]
    fn rows_in_half_precision_are_normalised_with_f32_statistics() {
        let device = testing::device();
        // 256 + 1 is 256 in bf16, and 2048 + 1 is 2048 in f16: statistics in the dtype of the rows would lose the
        // whole signal.
        let mut halves = vec![(FloatDType::BF16, 256.0), (FloatDType::F16, 2048.0)];
        halves.retain(|(dtype, _)| device.supports_dtype(*dtype));
        assert!(!halves.is_empty());
        for (half, middle) in halves {
            let x = Tensor::<2>::from_data([[middle - 2.0, middle, middle + 2.0, middle]], &device);
            let y = Norm::new(4, true, &device).forward(x.cast(half));
            let y = y.cast(FloatDType::F32).into_data();
            let expected = [-1.414, 0.0, 1.414, 0.0];
            for (y, expected) in y.iter::<f32>().zip(expected) {
                assert!((y - expected).abs() < 0.01, "{half:?}: {y} {expected}");
            }
        }
    }

    #[test]
    fn rows_are_divided_by_their_root_mean_square_in_any_dtype() {
        let device = testing::device();
        let mut dtypes = vec![FloatDType::F32, FloatDType::BF16, FloatDType::F16];
        dtypes.retain(|dtype| device.supports_dtype(*dtype));
        for dtype in dtypes {
            // The square of 300, 90000, exceeds the largest f16.
            let x = Tensor::<2>::from_data([[300.0, -300.0, 0.0, 0.0]], &device);
            let y = RmsNorm::new(4, 1e-6, &device).forward(x.cast(dtype));
            assert_eq!(FloatDType::from(y.dtype()), dtype);
            let y = y.cast(FloatDType::F32).into_data();
            for (y, expected) in y.iter::<f32>().zip([1.414, -1.414, 0.0, 0.0]) {
                assert!((y - expected).abs() < 0.01, "{dtype:?}: {y} {expected}");
            }
        }
    }

    /// bf16 has 8 bits: 1 + 2⁻⁹ would be 1 in it.
    #[test]
    fn a_zero_centered_scale_is_added_to_one_in_f32() {
        let device = testing::device();
        let mut norm = RmsNorm::zero_centered(2, 0.0, &device);
        let x = Tensor::<2>::from_data([[3.0, 3.0]], &device);
        let values = |norm: &RmsNorm| norm.forward(x.clone()).into_data().iter().collect::<Vec<f32>>();
        assert_eq!(values(&norm), [1.0, 1.0]);
        let mut dtypes = vec![FloatDType::F32, FloatDType::BF16, FloatDType::F16];
        dtypes.retain(|dtype| device.supports_dtype(*dtype));
        for dtype in dtypes {
            let scale = Tensor::<1>::from_data([0.001_953_125, 1.0], &device).cast(dtype);
            norm.scale = Param::from_tensor(scale);
            assert_eq!(values(&norm), [1.001_953_1, 2.0], "{dtype:?}");
        }
    }
}
