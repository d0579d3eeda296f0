//! A linear layer with dropout on the input of its factors.

use burn::module::{Param, ParamId};
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::{add, cast, linear, linear_in_fp8, with_read_products};

use super::factors::LoraFactors;
use crate::{Dropout, Pass};

/// Maps `x`, `[.., in]`, to `x · weight + bias`, `[.., out]`, in the dtype of `x`. It computes in the dtype of the
/// weight, `[in, out]`; the bias is `[out]`.
///
/// If [`Lora`](crate::Lora) adapts the weight with a [dropout](crate::Lora::dropout), a pass that trains computes
///
/// ```text
/// x·W + bias + s · drop(x)·A·B
/// ```
///
/// or, with the [magnitudes](crate::Lora::dora) m, as PEFT does,
///
/// ```text
/// x·W + bias + (g - 1) · drop(x)·W + g · s · drop(x)·A·B,   g = m / ‖W + s · A·B‖
/// ```
///
/// which a layer that reads `weight.val()` cannot. A layer of your own calls this function to support it. The mask is
/// that of [`Dropout`], so `x` is `[rows, positions, .., in]` or `[rows, in]`.
///
/// ```
/// use burn::module::{Module, Param};
/// use burn::tensor::Tensor;
/// use firebrick_strategies::{Pass, adapted_linear};
///
/// #[derive(Module, Debug)]
/// struct Layer {
///     weight: Param<Tensor<2>>,
/// }
///
/// impl Layer {
///     fn forward(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
///         adapted_linear(x, &self.weight, None, pass)
///     }
/// }
/// # let device = burn::tensor::Device::flex();
/// # let layer = Layer { weight: Param::from_tensor(Tensor::ones([2, 3], &device)) };
/// # let y = layer.forward(Tensor::ones([1, 1, 2], &device), &Pass::train(&device));
/// # assert_eq!(y.into_data().iter::<f32>().collect::<Vec<_>>(), [2.0; 3]);
/// ```
///
/// # Panics
///
/// If the last axis of `x` is not `in`, and for the reasons of [`Dropout::forward`].
pub fn adapted_linear<const D: usize>(
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
    pass: &Pass,
) -> Tensor<D> {
    let factors = weight.reparameterization::<LoraFactors>().filter(|_| pass.is_training());
    let Some((factors, dropout)) = factors.and_then(|factors| Some((factors, factors.dropout.as_ref()?)))
    else {
        return of_factors(x, weight, bias, Some(pass));
    };
    if D == 1 {
        let (from, to) = (x.dims()[0], factors.b.dims()[1]);
        return adapted_linear::<2>(x.reshape([1, from]), weight, bias, pass).reshape([to; D]);
    }
    let (a, b) = (factors.a.val(), factors.b.val());
    let [outside, inside] = [x.dtype(), a.dtype()].map(FloatDType::from);
    let id = weight.id;
    let (x, weight, bias) =
        (cast(x, inside), factors.matrix(weight.base(), inside), bias.map(|bias| cast(bias, inside)));
    let dropped = Dropout::new(dropout.prob).forward(x.clone(), &pass.of_input(id, x.dims()[D - 1]));
    // A gradient needs the values of these products, also at the end of a recomputed segment: that of B, and of m.
    let low = |x: Tensor<D>| with_read_products(|| linear(x, a.clone(), None)) * factors.scale;
    let change = match &factors.magnitude {
        None => linear(low(dropped), b, None),
        Some(magnitude) => {
            let sum = weight.clone() + factors.delta().detach();
            let mut shape = [1; D];
            shape[D - 1] = sum.dims()[1];
            let gains = LoraFactors::gains(magnitude, &sum).reshape(shape);
            let (of_weight, of_factors) = with_read_products(|| {
                (linear(dropped.clone(), weight.clone(), None), linear(low(dropped), b, None))
            });
            (of_weight.clone() + of_factors) * gains - of_weight
        }
    };
    cast(add(mapped(x, weight, bias, id, Some(pass)), change), outside)
}

/// Computes the same as [`adapted_linear`] outside training: without a dropout. A layer calls it in training for an input
/// that belongs to no sample, such as embeddings that all samples share.
///
/// # Panics
///
/// If the last axis of `x` is not `in`.
pub fn undropped_linear<const D: usize>(
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    of_factors(x, weight, bias, None)
}

/// Computes the map of a weight with its factors, if it has any, without a dropout.
fn of_factors<const D: usize>(
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
    pass: Option<&Pass>,
) -> Tensor<D> {
    let id = weight.id;
    let weight = match weight.reparameterization::<LoraFactors>() {
        Some(factors) => factors.read(weight.base()),
        None => weight.val(),
    };
    let [outside, inside] = [x.dtype(), weight.dtype()].map(FloatDType::from);
    let bias = bias.map(|bias| cast(bias, inside));
    cast(mapped(cast(x, inside), weight, bias, id, pass), outside)
}

/// Computes the map itself, in 8 bits if the pass says so of the weight with this id.
fn mapped<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    id: ParamId,
    pass: Option<&Pass>,
) -> Tensor<D> {
    let dtype = FloatDType::from(weight.dtype());
    if pass.is_some_and(|pass| pass.is_in_fp8(id, weight.dims(), dtype)) {
        return linear_in_fp8(x, weight, bias);
    }
    let of_gathered = pass.and_then(|pass| pass.linear_of_gathered(&x, &weight, bias.as_ref()));
    of_gathered.unwrap_or_else(|| linear(x, weight, bias))
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
