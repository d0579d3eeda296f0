//! Activations on a device, each in one kernel, where Burn does not fuse their operations.
#![allow(unsafe_code)] // Launches without checks of bounds: each unit checks its element.

use std::f32::consts::FRAC_1_SQRT_2;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{CUBE, DENSITY, Gelu, GeluOps, TANH_SCALE, gradient, value};
use crate::cube::{Spec, UNITS, contiguous, element, grid, run, units, written};
use crate::off::Kernel;

/// √(2/π).
const SCALE: f32 = TANH_SCALE as f32;
/// The factor of the cubic term.
const THIRD: f32 = CUBE as f32;
/// 1 / √(2π).
const PEAK: f32 = DENSITY as f32;

/// The function of an element, x times a share of it.
#[derive(Clone, Copy)]
pub(crate) enum Curve {
    Gelu(Gelu),
    Silu,
}

impl GeluOps for Cube {
    fn gelu_value(x: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        if !computes(&x) {
            return value::<Self>(x, form);
        }
        let output = Spec::new(x.shape(), x.dtype());
        let [found] = run(vec![x], [output], move |inputs| [values(inputs, Curve::Gelu(form))]);
        found
    }

    fn gelu_gradient(x: FloatTensor<Self>, grad: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        if !computes(&x) || x.dtype() != grad.dtype() {
            return gradient::<Self>(x, grad, form);
        }
        let output = Spec::new(x.shape(), x.dtype());
        let [found] = run(vec![x, grad], [output], move |inputs| {
            let [found, _] = gradients(inputs, Curve::Gelu(form));
            [found]
        });
        found
    }
}

/// Returns whether the kernels compute these elements. An empty grid cannot be launched, and f64 is computed in f64.
pub(crate) fn computes(x: &FloatTensor<Cube>) -> bool {
    let narrow = matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
    x.shape().num_elements() > 0 && narrow && !Kernel::Activations.is_off()
}

/// Returns the function of `x`, times a second tensor if there is one.
pub(crate) fn values(inputs: Vec<CubeTensor>, curve: Curve) -> CubeTensor {
    let mut inputs = inputs.into_iter().map(contiguous);
    let x = inputs.next().expect("there is x");
    let up = inputs.next();
    let found = written(&x);
    let (cubes, units, [silu, exact]) = launched(&x, curve);
    // SAFETY: each unit checks that its element exists, which it alone reads and writes.
    unsafe {
        value_kernel::launch_unchecked(
            &x.client,
            cubes,
            CubeDim::new_1d(units),
            x.required_address_type(),
            x.clone().into_buffer_arg(),
            up.clone().unwrap_or_else(|| x.clone()).into_buffer_arg(),
            found.clone().into_buffer_arg(),
            x.meta.num_elements(),
            up.is_some(),
            silu,
            exact,
            element(&x),
        );
    }
    found
}

/// Returns the gradients of the tensors of [`values`], of which the last input is the gradient of the result. Without a
/// second tensor both are the same.
pub(crate) fn gradients(inputs: Vec<CubeTensor>, curve: Curve) -> [CubeTensor; 2] {
    let gated = inputs.len() == 3;
    let mut inputs = inputs.into_iter().map(contiguous);
    let mut next = || inputs.next().expect("as many inputs as the value has, and a gradient");
    let x = next();
    let up = if gated { next() } else { x.clone() };
    let grad = next();
    let of_x = written(&grad);
    let of_up = if gated { crate::cube::empty(&x, x.meta.shape().clone(), x.dtype) } else { of_x.clone() };
    let (cubes, units, [silu, exact]) = launched(&x, curve);
    // SAFETY: each unit checks that its element exists, which it alone reads and writes.
    unsafe {
        gradient_kernel::launch_unchecked(
            &x.client,
            cubes,
            CubeDim::new_1d(units),
            x.required_address_type(),
            x.clone().into_buffer_arg(),
            up.into_buffer_arg(),
            grad.into_buffer_arg(),
            of_x.clone().into_buffer_arg(),
            of_up.clone().into_buffer_arg(),
            x.meta.num_elements(),
            gated,
            silu,
            exact,
            element(&x),
        );
    }
    [of_x, of_up]
}

fn launched(x: &CubeTensor, curve: Curve) -> (CubeCount, u32, [bool; 2]) {
    let units = units(x, UNITS as usize);
    let cubes = grid(x, x.meta.num_elements().div_ceil(units as usize));
    (cubes, units, [matches!(curve, Curve::Silu), matches!(curve, Curve::Gelu(Gelu::Exact))])
}

/// Returns the share of x: σ(x), Φ(x), or its approximation.
#[cube]
fn share(x: f32, #[comptime] silu: bool, #[comptime] exact: bool) -> f32 {
    if comptime!(silu) {
        1.0 / (1.0 + (-x).exp())
    } else if comptime!(exact) {
        0.5 * (1.0 + Erf::erf(x * FRAC_1_SQRT_2))
    } else {
        0.5 * (1.0 + approximation(x))
    }
}

/// Returns the hyperbolic tangent of the approximation.
#[cube]
fn approximation(x: f32) -> f32 {
    let inner = (x + x * x * x * THIRD) * SCALE;
    inner.tanh()
}

/// Returns the derivative of x times its share.
#[cube]
fn slope(x: f32, share: f32, #[comptime] silu: bool, #[comptime] exact: bool) -> f32 {
    // Beyond these bounds x times the density is 0 beside 1, and inside them a polynomial of x stays finite.
    let near = min(max(x, f32::new(-12.0)), f32::new(12.0));
    if comptime!(silu) {
        share + x * share * (1.0 - share)
    } else if comptime!(exact) {
        let power = near * near * f32::new(-0.5);
        share + near * PEAK * power.exp()
    } else {
        let tanh = approximation(near);
        let of_inner = (near * near * THIRD * 3.0 + 1.0) * SCALE;
        share + near * (1.0 - tanh * tanh) * of_inner * 0.5
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn value_kernel<F: Float>(
    x: &[F],
    up: &[F],
    found: &mut [F],
    count: usize,
    #[comptime] gated: bool,
    #[comptime] silu: bool,
    #[comptime] exact: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let value = f32::cast_from(x[at]);
        let mut active = value * share(value, silu, exact);
        if gated {
            active *= f32::cast_from(up[at]);
        }
        found[at] = F::cast_from(active);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_kernel<F: Float>(
    x: &[F],
    up: &[F],
    grad: &[F],
    of_x: &mut [F],
    of_up: &mut [F],
    count: usize,
    #[comptime] gated: bool,
    #[comptime] silu: bool,
    #[comptime] exact: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let value = f32::cast_from(x[at]);
        let share = share(value, silu, exact);
        let grad = f32::cast_from(grad[at]);
        let mut of_value = grad * slope(value, share, silu, exact);
        if gated {
            of_value *= f32::cast_from(up[at]);
            of_up[at] = F::cast_from(grad * value * share);
        }
        of_x[at] = F::cast_from(of_value);
    }
}
