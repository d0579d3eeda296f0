//! An affine map that is fast in half precision on the CPU, and drops the input of its factors.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::cast;
use firebrick_strategies::{Pass, adapted_linear, undropped_linear};

/// An affine map of the last axis, `x · weight + bias`, like Burn's and with the same parameter names.
///
/// It computes in the dtype of its weight and returns the dtype of its input, so a layer that stays in f32 works
/// between bf16 activations. In training it applies the dropout of [`Lora`](firebrick_strategies::Lora), if there is one.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// `[in, out]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// Creates a layer with weights `[from, to]` drawn by `initializer` and, if `bias` is set, a bias of 0.
    pub fn new(from: usize, to: usize, bias: bool, initializer: Initializer, device: &Device) -> Self {
        Self {
            weight: initializer.init_with([from, to], Some(from), Some(to), device),
            bias: bias.then(|| Initializer::Zeros.init([to], device)),
        }
    }

    /// Maps `[.., in]` to `[.., out]`, in the dtype of `x`: see [`adapted_linear`].
    ///
    /// # Panics
    ///
    /// If the last axis of `x` is not `in`, and for the reasons of [`adapted_linear`].
    pub fn forward<const D: usize>(&self, x: Tensor<D>, pass: &Pass) -> Tensor<D> {
        adapted_linear(x, &self.weight, self.bias.as_ref().map(Param::val), pass)
    }

    /// Like [`forward`](Self::forward), where `x` is this rank's share of the input if [ranks share the layer](Pass::shares_layers):
    /// returns the sum over them.
    ///
    /// # Panics
    ///
    /// The same as [`forward`](Self::forward).
    pub fn forward_rows(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
        if !pass.shares_layers() {
            return self.forward(x, pass);
        }
        let y = pass.after_rows(adapted_linear(x, &self.weight, None, pass));
        match &self.bias {
            // Each rank adds it to the sum, since all have it whole.
            Some(bias) => {
                let bias = cast(bias.val(), FloatDType::from(y.dtype()));
                y + bias.unsqueeze()
            }
            None => y,
        }
    }

    /// Returns the length of its outputs, without reading the weight.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.lazy_shape()[1]
    }

    /// Like [`forward`](Self::forward), without a dropout, for an input that belongs to no sample, such as embeddings
    /// that all samples share.
    ///
    /// # Panics
    ///
    /// If the last axis of `x` is not `in`.
    pub fn forward_undropped<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        undropped_linear(x, &self.weight, self.bias.as_ref().map(Param::val))
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

#[cfg(test)]
mod tests {
    use burn::nn::{Initializer::Zeros, LinearConfig};
    use burn::store::ModuleSnapshot;
    use burn::tensor::{DType, FloatDType};

    use super::*;

    #[test]
    fn outputs_have_the_dtype_of_the_input() {
        let device = Device::flex().autodiff();
        // bf16 cannot represent 257, and f16 cannot represent 2049: either would round to the bias's magnitude, and
        // the sum would be 0.
        let weight = Tensor::<2>::from_data([[257.0, 2049.0]], &device);
        let bias = Tensor::from_data([-256.0, -2048.0], &device);
        let linear = Linear { weight: Param::from_tensor(weight), bias: Some(Param::from_tensor(bias)) };
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            let x = Tensor::<3>::ones([1, 1, 1], &device).cast(dtype).require_grad();
            let y = linear.forward(x.clone(), &Pass::train(&device));
            assert_eq!((y.dims(), y.dtype()), ([1, 1, 2], DType::from(dtype)));
            assert_eq!(y.clone().into_data().iter::<f32>().collect::<Vec<_>>(), [1.0; 2]);
            let grads = y.sum().backward();
            assert_eq!(x.grad(&grads).unwrap().dtype(), DType::from(dtype));
            assert_eq!(linear.weight.grad(&grads).unwrap().dtype(), DType::F32);
        }
    }

    /// Files of a model with Burn's layers can be read into a model with these layers, and vice versa.
    #[test]
    fn parameters_are_named_as_burns() {
        let device = Device::flex();
        for bias in [true, false] {
            let ours = vec![Linear::new(2, 3, bias, Zeros, &device)];
            let burns = vec![LinearConfig::new(2, 3).with_bias(bias).init(&device)];
            let names = ours.collect(None, None, false).iter().map(|x| x.name.clone()).collect::<Vec<_>>();
            let expected = burns.collect(None, None, false);
            assert_eq!(names, expected.iter().map(|x| x.name.clone()).collect::<Vec<_>>());
            assert_eq!(names.len(), 1 + usize::from(bias));
        }
    }

    #[test]
    fn new_layers_start_like_burns() {
        let device = Device::flex();
        let constant = burn::nn::Initializer::Constant { value: 0.5 };
        let linear = Linear::new(2, 3, true, constant, &device);
        let y = linear.forward(Tensor::<1>::from_data([1.0, 3.0], &device), &Pass::train(&device));
        assert_eq!(y.into_data().iter::<f32>().collect::<Vec<_>>(), [2.0; 3]);
    }
}
