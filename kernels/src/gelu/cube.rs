//! Activations on a device, each in one kernel, where Burn does not fuse their operations.
#![allow(unsafe_code)] // Launches without checks of bounds: each unit checks its element.

use std::f32::consts::FRAC_1_SQRT_2;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{CUBE, DENSITY, Gelu, GeluOps, TANH_SCALE, gradient, value};
use crate::cube::{Spec, UNITS, contiguous, element, empty, grid, run, together, units, written};
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
    let gated = up.is_some();
    let up = up.unwrap_or_else(|| x.clone());
    let Launched { cubes, units, together, count, silu, exact } = Launched::of(&[&x, &up, &found], curve);
    // SAFETY: each unit checks that its elements exist, which it alone reads and writes.
    unsafe {
        value_kernel::launch_unchecked(
            &x.client,
            cubes,
            CubeDim::new_1d(units),
            x.required_address_type(),
            together,
            x.clone().into_buffer_arg(),
            up.into_buffer_arg(),
            found.clone().into_buffer_arg(),
            count,
            gated,
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
    let of_up = if gated { empty(&x, x.meta.shape().clone(), x.dtype) } else { of_x.clone() };
    let tensors = [&x, &up, &grad, &of_x, &of_up];
    let Launched { cubes, units, together, count, silu, exact } = Launched::of(&tensors, curve);
    // SAFETY: each unit checks that its elements exist, which it alone reads and writes.
    unsafe {
        gradient_kernel::launch_unchecked(
            &x.client,
            cubes,
            CubeDim::new_1d(units),
            x.required_address_type(),
            together,
            x.clone().into_buffer_arg(),
            up.into_buffer_arg(),
            grad.into_buffer_arg(),
            of_x.clone().into_buffer_arg(),
            of_up.clone().into_buffer_arg(),
            count,
            gated,
            silu,
            exact,
            element(&x),
        );
    }
    [of_x, of_up]
}

/// How the elements are divided among the units.
struct Launched {
    cubes: CubeCount,
    units: u32,
    /// Neighbours that a unit computes.
    together: usize,
    /// How many of them there are.
    count: usize,
    silu: bool,
    exact: bool,
}

impl Launched {
    /// Of tensors of one shape and dtype.
    fn of(tensors: &[&CubeTensor], curve: Curve) -> Self {
        let x = tensors[0];
        let all = x.meta.num_elements();
        let together = together(tensors, |together| all.is_multiple_of(together));
        let (units, count) = (units(x, UNITS as usize), all / together);
        Self {
            cubes: grid(x, count.div_ceil(units as usize)),
            units,
            together,
            count,
            silu: matches!(curve, Curve::Silu),
            exact: matches!(curve, Curve::Gelu(Gelu::Exact)),
        }
    }
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
fn value_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    up: &[Vector<F, N>],
    found: &mut [Vector<F, N>],
    count: usize,
    #[comptime] gated: bool,
    #[comptime] silu: bool,
    #[comptime] exact: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let values = Vector::<f32, N>::cast_from(x[at]);
        let mut active = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            let value = values.extract(i);
            active.insert(i, value * share(value, silu, exact));
        }
        if gated {
            active *= Vector::cast_from(up[at]);
        }
        found[at] = Vector::cast_from(active);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    up: &[Vector<F, N>],
    grad: &[Vector<F, N>],
    of_x: &mut [Vector<F, N>],
    of_up: &mut [Vector<F, N>],
    count: usize,
    #[comptime] gated: bool,
    #[comptime] silu: bool,
    #[comptime] exact: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let values = Vector::<f32, N>::cast_from(x[at]);
        let grad = Vector::<f32, N>::cast_from(grad[at]);
        let mut active = Vector::<f32, N>::new(0.0f32);
        let mut slopes = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            let value = values.extract(i);
            let share = share(value, silu, exact);
            slopes.insert(i, slope(value, share, silu, exact));
            active.insert(i, value * share);
        }
        let mut of_value = grad * slopes;
        if gated {
            of_value *= Vector::cast_from(up[at]);
            of_up[at] = Vector::cast_from(grad * active);
        }
        of_x[at] = Vector::cast_from(of_value);
    }
}
