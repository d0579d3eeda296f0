//! Activation functions, with the names that Hugging Face gives them.

use burn::tensor::{Tensor, activation};
use firebrick_kernels::{Gate, Gelu, gated, gelu};
use serde::{Deserialize, Serialize};

/// An element-wise activation function of a feed-forward layer.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_models::Activation;
///
/// let relu: Activation = serde_json::from_str("\"relu\"")?;
/// let x = Tensor::<1>::from_data([-1.0, 2.0], &Device::flex());
/// assert_eq!(relu.forward(x).into_data().iter::<f32>().collect::<Vec<_>>(), [0.0, 2.0]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x · Φ(x) (Hendrycks & Gimpel, 2016, arXiv:1606.08415).
    #[default]
    #[serde(alias = "gelu_python")]
    Gelu,
    /// The tanh approximation of GELU, as in GPT-2.
    #[serde(alias = "gelu_pytorch_tanh", alias = "gelu_fast")]
    GeluNew,
    /// max(0, x).
    Relu,
    /// x · σ(x), also called swish.
    #[serde(alias = "swish")]
    Silu,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Applies the function to each element.
    pub fn forward<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => gelu(x, Gelu::Exact),
            Self::GeluNew => gelu(x, Gelu::Tanh),
            Self::Relu => activation::relu(x),
            Self::Silu => activation::silu(x),
            Self::Tanh => x.tanh(),
        }
    }

    /// Applies the function to each element of `gate` and multiplies by `up` (Shazeer, 2020, arXiv:2002.05202).
    ///
    /// # Panics
    ///
    /// If the shapes or the dtypes differ.
    pub fn gated<const D: usize>(self, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => gated(gate, up, Gate::Gelu(Gelu::Exact)),
            Self::GeluNew => gated(gate, up, Gate::Gelu(Gelu::Tanh)),
            Self::Silu => gated(gate, up, Gate::Silu),
            Self::Relu | Self::Tanh => self.forward(gate) * up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn activations_match_their_definitions() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let tanh = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044_715 * x.powi(3))).tanh());
        let exact = [(-1.0, -0.158_655_25), (0.5, 0.345_731_23), (2.0, 1.954_499_74)];
        for (x, gelu) in exact {
            let of = |function: Activation| {
                let x = Tensor::<1>::from_data([x], &testing::device());
                function.forward(x).into_scalar::<f64>()
            };
            for (function, expected) in [
                (Activation::Gelu, gelu),
                (Activation::GeluNew, tanh(x)),
                (Activation::Relu, x.max(0.0)),
                (Activation::Silu, x * sigmoid(x)),
                (Activation::Tanh, x.tanh()),
            ] {
                assert!((of(function) - expected).abs() < 1e-5, "{function:?}({x}) = {}", of(function));
            }
        }
    }

    #[test]
    fn gated_activations_are_products() {
        let of = |x: [f32; 3]| Tensor::<1>::from_data(x, &testing::device());
        let (gate, up) = (of([-1.0, 0.5, 2.0]), of([3.0, -2.0, 0.5]));
        for function in
            [Activation::Gelu, Activation::GeluNew, Activation::Relu, Activation::Silu, Activation::Tanh]
        {
            let values = |x: Tensor<1>| x.into_data().iter::<f32>().collect::<Vec<_>>();
            let found = values(function.gated(gate.clone(), up.clone()));
            let expected = values(function.forward(gate.clone()) * up.clone());
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{function:?}: {found} {expected}");
            }
        }
    }

    #[test]
    fn names_are_hugging_faces() {
        let read = |name: &str| serde_json::from_str::<Activation>(&format!("\"{name}\""));
        assert_eq!(read("gelu_pytorch_tanh").unwrap(), Activation::GeluNew);
        assert_eq!(serde_json::to_string(&Activation::GeluNew).unwrap(), "\"gelu_new\"");
        let error = read("mish").unwrap_err().to_string();
        assert!(error.contains("mish") && error.contains("gelu_new"), "{error}");
    }
}
