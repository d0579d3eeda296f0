//! Gated activations as operations of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};

use crate::gelu::{Gelu, GeluOps, narrow, wide};

/// The activation of [`gated`](crate::gated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x · σ(x), also called swish: SwiGLU.
    Silu,
    /// x · Φ(x), or its approximation: GEGLU.
    Gelu(Gelu),
}

/// The gated activations of a backend, without tracking. The defaults use Burn's operations, in f32 if the tensors are
/// narrower.
pub trait Gates: GeluOps {
    /// Returns the activation of `gate` times `up`.
    fn value(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        value::<Self>(gate, up, form)
    }

    /// Returns the gradients of `gate` and of `up`.
    fn gradients(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        form: Gate,
    ) -> [FloatTensor<Self>; 2] {
        gradients::<Self>(gate, up, grad, form)
    }
}

/// Gated activations with gradients.
///
/// Call [`gated`](super::gated), which takes tensors. On backends outside this crate's features, it panics.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait GatedOps: Backend {
    /// Returns the activation of `gate` times `up`, of one shape and dtype.
    fn own_gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self>;
}

#[cfg(all(feature = "cube", feature = "fusion"))]
impl Gates for burn::backend::Cube {}

macro_rules! without_gradients {
    ($backend:ty) => {
        impl GatedOps for $backend {
            fn own_gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
                <Self as Gates>::value(gate, up, form)
            }
        }
    };
}

#[cfg(feature = "cube")]
without_gradients!(burn::backend::Cube);
without_gradients!(burn::backend::Flex);

/// Computes the value with Burn's operations.
pub(super) fn value<B: GeluOps>(gate: FloatTensor<B>, up: FloatTensor<B>, form: Gate) -> FloatTensor<B> {
    let dtype = gate.dtype();
    let [gate, up] = [gate, up].map(wide::<B>);
    let active = match form {
        Gate::Silu => B::float_mul(gate.clone(), B::sigmoid(gate)),
        Gate::Gelu(form) => B::gelu_value(gate, form),
    };
    narrow::<B>(B::float_mul(active, up), dtype)
}

/// Computes the gradients with Burn's operations.
pub(super) fn gradients<B: GeluOps>(
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
    grad: FloatTensor<B>,
    form: Gate,
) -> [FloatTensor<B>; 2] {
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
    [of_gate, B::float_mul(grad, active)].map(|found| narrow::<B>(found, dtype))
}
