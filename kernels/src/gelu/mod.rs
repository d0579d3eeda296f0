//! The Gaussian error linear unit, with its own gradient on every device, vectorized on the CPU.
//!
//! On GPUs, Burn 0.22.1 uses the gradient of the approximation for the exact form, and composes the approximation of
//! operations that each keep a tensor for the backward pass. On the CPU both run element by element on one core. Here
//! the gradient matches the function, only the input is kept, and Flex computes on all cores in vectors.
//!
//! The function is a pass behind the product that it activates, not that product's epilogue, because its arithmetic takes
//! the time: on two cores of an EPYC of the first generation, 2048 x 1024 elements in f32 take 2.2 ms. They take 2.0 ms if
//! they are read from the first cache, where an epilogue would find them, and the product takes 15 ms. The lines
//! `epilogue` of `cargo bench -p firebrick-kernels --bench elements` compare the two.
//!
//! On GPUs, the value and the gradient are a kernel of ours each, which moves 16 bytes at a time. With the feature `fusion`
//! they are made of element-wise operations, which Burn fuses into one kernel each, together with the bias before them.
//!
//! ```text
//! cube.rs     kernels, where Burn does not fuse operations
//! vectors.rs  erf, exp and tanh without branches, which the compiler turns into vectors
//! ```

#[cfg(all(feature = "cube", not(feature = "fusion")))]
pub(crate) mod cube;
#[cfg(test)]
mod tests;
pub(crate) mod vectors;

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;

use crate::autodiff::recomputable;
use crate::elements::{is_narrow, mapped};
use crate::half::{to_dtype, wide};
use crate::off::Kernel;
use vectors::{approximate, approximate_slope, exact, exact_slope};

pub(crate) use vectors::exp;

/// Computes x · Φ(x) of each element, where Φ is the distribution function of the normal distribution (Hendrycks &
/// Gimpel, 2016, arXiv:1606.08415), or its approximation. In half precision it computes in f32 and rounds once.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Gelu, gelu};
///
/// let x = Tensor::<1>::from_data([0.0, 1.0], &Device::flex().autodiff()).require_grad();
/// let y = gelu(x.clone(), Gelu::Exact);
/// let values: Vec<f32> = y.clone().into_data().iter().collect();
/// assert!(values[0] == 0.0 && (values[1] - 0.841345).abs() < 1e-6);
/// let slopes: Vec<f32> = x.grad(&y.sum().backward()).unwrap().into_data().iter().collect();
/// assert!((slopes[0] - 0.5).abs() < 1e-6 && (slopes[1] - 1.083315).abs() < 1e-6);
/// ```
pub fn gelu<const D: usize>(x: Tensor<D>, form: Gelu) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as GeluOps>::gelu_value(x.into_dispatch(), form))
}

/// The form of [`gelu`](crate::gelu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// x · Φ(x), with the error function.
    Exact,
    /// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
    Tanh,
}

/// √(2/π).
const TANH_SCALE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// 1 / √(2π).
const DENSITY: f64 = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
const CUBE: f64 = 0.044_715;

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
fn value<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let dtype = x.dtype();
    let x = wide::<B>(x);
    to_dtype::<B>(B::float_mul(x.clone(), share::<B>(x, form)), dtype)
}

/// Computes the derivative times `grad` with Burn's operations.
fn gradient<B: Backend>(x: FloatTensor<B>, grad: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
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

impl GeluOps for Flex {
    fn gelu_value(x: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        match form {
            _ if !is_narrow(x.dtype()) || Kernel::Activations.is_off() => value::<Self>(x, form),
            Gelu::Exact => mapped([x], |[x]| exact(x)),
            Gelu::Tanh => mapped([x], |[x]| approximate(x)),
        }
    }

    fn gelu_gradient(x: FloatTensor<Self>, grad: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        match form {
            _ if !is_narrow(x.dtype()) || Kernel::Activations.is_off() => gradient::<Self>(x, grad, form),
            Gelu::Exact => mapped([x, grad], |[x, grad]| grad * exact_slope(x)),
            Gelu::Tanh => mapped([x, grad], |[x, grad]| grad * approximate_slope(x)),
        }
    }
}
