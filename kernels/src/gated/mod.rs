//! Gated activations: the feed-forward layers of Llama and T5 multiply the activation of one projection by another
//! (Shazeer, 2020, arXiv:2002.05202).
//!
//! On Flex, Burn computes SiLU as three passes and the product as a fourth, each on one core, and keeps a tensor of each
//! for the backward pass. Here the value is one pass on all cores, both gradients together are another, and only the
//! two projections are kept.
//!
//! On GPUs, the value is one kernel of ours, and so are both gradients together. With the feature `fusion`, Burn fuses them
//! from its operations, as for [`gelu`](crate::gelu()).

#[cfg(all(feature = "cube", not(feature = "fusion")))]
mod cube;
#[cfg(test)]
mod tests;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;

use crate::autodiff::recomputable;
use crate::elements::{is_narrow, mapped, mapped_to_two};
use crate::gelu::vectors::{approximate, approximate_slope, exact, exact_slope, silu};
use crate::gelu::{Gelu, GeluOps};
use crate::half::{to_dtype, wide};
use crate::off::Kernel;

/// Multiplies the activation of `gate` by `up`, element by element. In half precision it computes in f32 and rounds
/// once. The backward pass keeps `gate` and `up`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Gate, gated};
///
/// let device = Device::flex();
/// let [gate, up] = [[0.0, 1.0], [5.0, 2.0]].map(|x| Tensor::<1>::from_data(x, &device));
/// let y: Vec<f32> = gated(gate, up, Gate::Silu).into_data().iter().collect();
/// assert!(y[0] == 0.0 && (y[1] - 1.462117).abs() < 1e-6);
/// ```
///
/// # Panics
///
/// If the shapes or the dtypes differ.
pub fn gated<const D: usize>(gate: Tensor<D>, up: Tensor<D>, form: Gate) -> Tensor<D> {
    assert_eq!(gate.dims(), up.dims(), "gated: the shapes of gate and up differ");
    assert_eq!(gate.dtype(), up.dtype(), "gated: the dtypes of gate and up differ");
    let [gate, up] = [gate, up].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as GatedOps>::gated_value(gate, up, form))
}

/// The activation of [`gated`](crate::gated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x · σ(x), also called swish: SwiGLU.
    Silu,
    /// x · Φ(x), or its approximation: GEGLU.
    Gelu(Gelu),
}

/// Gated activations. The defaults use Burn's operations, in f32 if the tensors are narrower.
///
/// Call [`gated`], which takes tensors. On backends outside this crate's features, it panics.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait GatedOps: GeluOps {
    /// Returns the activation of `gate` times `up`, of one shape and dtype.
    fn gated_value(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        value::<Self>(gate, up, form)
    }

    /// Returns the gradients of `gate` and of `up`.
    fn gated_gradients(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        form: Gate,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        gradients::<Self>(gate, up, grad, form)
    }
}

#[cfg(all(feature = "cube", feature = "fusion"))]
impl GatedOps for burn::backend::Cube {}

impl<B: GatedOps, C: CheckpointStrategy> GatedOps for Autodiff<B, C> {
    fn gated_value(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        recomputable::<B, C, _, _>(
            [gate, up],
            form,
            |[gate, up], form| B::gated_value(gate, up, form),
            |[gate, up], form, grad| B::gated_gradients(gate, up, grad, form).into(),
        )
    }
}

/// Computes the value with Burn's operations.
fn value<B: GeluOps>(gate: FloatTensor<B>, up: FloatTensor<B>, form: Gate) -> FloatTensor<B> {
    let dtype = gate.dtype();
    let [gate, up] = [gate, up].map(wide::<B>);
    let active = match form {
        Gate::Silu => B::float_mul(gate.clone(), B::sigmoid(gate)),
        Gate::Gelu(form) => B::gelu_value(gate, form),
    };
    to_dtype::<B>(B::float_mul(active, up), dtype)
}

/// Computes the gradients with Burn's operations.
fn gradients<B: GeluOps>(
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
    grad: FloatTensor<B>,
    form: Gate,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = gate.dtype();
    let [gate, up, grad] = [gate, up, grad].map(wide::<B>);
    let of_active = B::float_mul(grad.clone(), up);
    let (active, of_gate) = match form {
        Gate::Silu => {
            let share = B::sigmoid(gate.clone());
            let active = B::float_mul(gate, share.clone());
            // σ(x) + x σ(x) (1 - σ(x)).
            let rest = B::float_neg(B::float_sub_scalar(share.clone(), 1f32.into()));
            let slope = B::float_add(share, B::float_mul(active.clone(), rest));
            (active, B::float_mul(of_active, slope))
        }
        Gate::Gelu(form) => (B::gelu_value(gate.clone(), form), B::gelu_gradient(gate, of_active, form)),
    };
    (to_dtype::<B>(of_gate, dtype), to_dtype::<B>(B::float_mul(grad, active), dtype))
}

impl GatedOps for Flex {
    fn gated_value(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        match form {
            _ if !is_narrow(gate.dtype()) || Kernel::Activations.is_off() => value::<Self>(gate, up, form),
            Gate::Silu => mapped([gate, up], |[x, up]| silu(x)[0] * up),
            Gate::Gelu(Gelu::Exact) => mapped([gate, up], |[x, up]| exact(x) * up),
            Gate::Gelu(Gelu::Tanh) => mapped([gate, up], |[x, up]| approximate(x) * up),
        }
    }

    fn gated_gradients(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        form: Gate,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if !is_narrow(gate.dtype()) || Kernel::Activations.is_off() {
            return gradients::<Self>(gate, up, grad, form);
        }
        let tensors = [gate, up, grad];
        let found = match form {
            Gate::Silu => mapped_to_two(tensors, |[x, up, grad]| {
                let [active, slope] = silu(x);
                [grad * up * slope, grad * active]
            }),
            Gate::Gelu(Gelu::Exact) => {
                mapped_to_two(tensors, |[x, up, grad]| [grad * up * exact_slope(x), grad * exact(x)])
            }
            Gate::Gelu(Gelu::Tanh) => mapped_to_two(tensors, |[x, up, grad]| {
                [grad * up * approximate_slope(x), grad * approximate(x)]
            }),
        };
        found.into()
    }
}
