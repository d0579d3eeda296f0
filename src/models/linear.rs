//! An affine map that is fast in half precision on the CPU.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_strategies::{cast, linear};

/// An affine map of the last axis, `x · weight + bias`: as Burn's, with the same parameter names.
///
/// It computes in the dtype of its weight and answers in that of its input, so a layer that is kept
/// in f32 works between activations in bf16.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// `[in, out]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// Weights `[from, to]` as `initializer` draws them and, if asked for, bias 0.
    pub fn new(from: usize, to: usize, bias: bool, initializer: Initializer, device: &Device) -> Self {
        Self {
            weight: initializer.init_with([from, to], Some(from), Some(to), device),
            bias: bias.then(|| Param::from_tensor(Tensor::zeros([to], device))),
        }
    }

    /// `[.., in]` to `[.., out]`, in the dtype of `x`.
    ///
    /// # Panics
    ///
    /// Where the last axis of `x` is not `in`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = self.weight.val();
        let (outside, inside) = (FloatDType::from(x.dtype()), FloatDType::from(weight.dtype()));
        let bias = self.bias.as_ref().map(|bias| cast(bias.val(), inside));
        cast(linear(cast(x, inside), weight, bias), outside)
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [from, to] = self.weight.shape().dims();
        content.add("in", &from).add("out", &to).add("bias", &self.bias.is_some()).optional()
    }
}
