//! Root mean square layer normalisation that is correct in half precision.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use firebrick_kernels::{NormKind, norm, norm_and_input, norm_of_sum};

/// `x / √(mean(x²) + ε) · scale` over the last axis, without a mean and without a bias (Zhang & Sennrich, 2019,
/// arXiv:1910.07467).
///
/// It computes in f32 and casts the result back to the input's dtype.
#[derive(Module, Debug)]
pub struct RmsNorm {
    scale: Param<Tensor<1>>,
    epsilon: f64,
}

impl RmsNorm {
    /// Creates a norm with scale 1 of shape `[width]`; `epsilon` is added to the mean square.
    pub fn new(width: usize, epsilon: f64, device: &Device) -> Self {
        Self { scale: Initializer::Ones.init([width], device), epsilon }
    }

    /// Normalises `[.., width]` to the same shape, in the dtype of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        norm(x, self.scale.val(), None, self.kind())
    }

    /// Returns `x`, to be used in its place, and `x` normalised: the gradients of both are added in one pass.
    pub fn with_input<const D: usize>(&self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        norm_and_input(x, self.scale.val(), None, self.kind())
    }

    /// Returns `x + y` and that sum normalised, in one pass.
    ///
    /// # Panics
    ///
    /// If `x` and `y` differ in shape or dtype.
    pub fn of_sum<const D: usize>(&self, x: Tensor<D>, y: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        norm_of_sum(x, y, self.scale.val(), None, self.kind())
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
}
