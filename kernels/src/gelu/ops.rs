//! Values and slopes as operations of a backend. Only the input is kept for the gradient; on the CPU, what reads the value
//! for its own gradient keeps nothing more.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};

use crate::autodiff::recomputable;
use crate::half::{to_dtype, wide};

/// The form of [`gelu`](crate::gelu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// x · Φ(x), with the error function.
    Exact,
    /// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
    Tanh,
}

/// √(2/π).
pub(super) const TANH_SCALE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// 1 / √(2π).
pub(super) const DENSITY: f64 = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
pub(super) const CUBE: f64 = 0.044_715;

/// Values and slopes of [`Gelu`]. The defaults use Burn's operations, in f32 if the tensor is narrower.
///
/// Call [`gelu`](crate::gelu), which takes tensors.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait GeluOps: Backend {
    /// Returns the function of each element, in the dtype of `x`.
    fn gelu_value(x: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        value::<Self>(x, form)
    }

    /// Returns the derivative at each element of `x`, times `grad`, which has the shape and dtype of `x`.
    fn gelu_gradient(x: FloatTensor<Self>, grad: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        gradient::<Self>(x, grad, form)
    }
}

#[cfg(all(feature = "cube", feature = "fusion"))]
impl GeluOps for burn::backend::Cube {}

impl<B: GeluOps, C: CheckpointStrategy> GeluOps for Autodiff<B, C> {
    fn gelu_value(x: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        recomputable::<B, C, _, _>(
            [x],
            form,
            |[x], form| B::gelu_value(x, form),
            |[x], form, grad| [B::gelu_gradient(x, grad, form)],
        )
    }
}

/// Computes the function with Burn's operations.
pub(super) fn value<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let dtype = x.dtype();
    let x = wide::<B>(x);
    to_dtype::<B>(B::float_mul(x.clone(), share::<B>(x, form)), dtype)
}

/// Computes the derivative times `grad` with Burn's operations.
pub(super) fn gradient<B: Backend>(x: FloatTensor<B>, grad: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let dtype = x.dtype();
    let slope = slope::<B>(wide::<B>(x), form);
    to_dtype::<B>(B::float_mul(slope, wide::<B>(grad)), dtype)
}

/// Returns the factor of x: Φ(x), or its approximation.
fn share<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let odd = match form {
        Gelu::Exact => B::float_erf(B::float_div_scalar(x, SQRT_2.into())),
        Gelu::Tanh => tanh::<B>(x),
    };
    B::float_mul_scalar(B::float_add_scalar(odd, 1f32.into()), 0.5f32.into())
}

/// Returns the hyperbolic tangent of the approximation.
fn tanh<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let square = B::float_mul(x.clone(), x.clone());
    let of = B::float_add_scalar(B::float_mul_scalar(square, CUBE.into()), 1f32.into());
    B::float_tanh(B::float_mul_scalar(B::float_mul(x, of), TANH_SCALE.into()))
}

/// Returns Φ(x) + x · Φ'(x).
fn slope<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    // Beyond these bounds x times the density is 0 beside 1, and inside them a polynomial of x stays finite.
    let near = B::float_clamp(x.clone(), (-12f32).into(), 12f32.into());
    let square = B::float_mul(near.clone(), near.clone());
    let density = match form {
        Gelu::Exact => {
            let bell = B::float_exp(B::float_mul_scalar(square, (-0.5f32).into()));
            B::float_mul_scalar(bell, DENSITY.into())
        }
        Gelu::Tanh => {
            let tanh = tanh::<B>(near.clone());
            let bell = B::float_neg(B::float_sub_scalar(B::float_mul(tanh.clone(), tanh), 1f32.into()));
            let inner = B::float_add_scalar(B::float_mul_scalar(square, (3.0 * CUBE).into()), 1f32.into());
            B::float_mul_scalar(B::float_mul(bell, inner), (0.5 * TANH_SCALE).into())
        }
    };
    let share = share::<B>(x, form);
    B::float_add(share, B::float_mul(near, density))
}
