//! Gated activations as operations of a backend. Only the two projections are kept for the gradients.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata, backend_extension};

use crate::autodiff::recomputable;
use crate::gelu::{Gelu, GeluOps};
use crate::half::{to_dtype, wide};

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
/// Call [`gated`](super::gated), which takes tensors. On backends outside this crate's features, it panics.
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
pub(super) fn value<B: GeluOps>(gate: FloatTensor<B>, up: FloatTensor<B>, form: Gate) -> FloatTensor<B> {
    let dtype = gate.dtype();
    let [gate, up] = [gate, up].map(wide::<B>);
    let active = match form {
        Gate::Silu => B::float_mul(gate.clone(), B::sigmoid(gate)),
        Gate::Gelu(form) => B::gelu_value(gate, form),
    };
    to_dtype::<B>(B::float_mul(active, up), dtype)
}

/// Computes the gradients with Burn's operations.
pub(super) fn gradients<B: GeluOps>(
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
