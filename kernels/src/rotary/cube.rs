//! Pairs on a device, of any view whose rows are whole: one unit rotates one pair.
#![allow(unsafe_code)] // A launch without checks of bounds: the kernel checks its pair.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{RotaryOps, composed};
use crate::cube::{Spec, contiguous, element, empty, grid, run, units, written};
use crate::off::Kernel;

impl RotaryOps for Cube {
    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self> {
        let narrow = matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
        let in_f32 = [&cos, &sin].iter().all(|angles| angles.dtype() == DType::F32);
        if x.shape().num_elements() == 0 || !narrow || !in_f32 || Kernel::Rotary.is_off() {
            return composed::<Self>(x, cos, sin, back);
        }
        let output = Spec::new(x.shape(), x.dtype());
        let [found] = run(vec![x, cos, sin], [output], move |inputs| {
            let [x, cos, sin] = inputs.try_into().expect("three inputs");
            [turned(x, cos, sin, back)]
        });
        found
    }
}

fn turned(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, back: bool) -> CubeTensor {
    // The heads of a projection are a view whose rows are whole.
    let x = if x.meta.strides()[3] == 1 { x } else { contiguous(x) };
    let found = if x.is_contiguous() { written(&x) } else { empty(&x, x.meta.shape().clone(), x.dtype) };
    let (cos, sin) = (contiguous(cos), contiguous(sin));
    let [_, heads, length, size] = x.meta.shape().dims();
    let strides = x.meta.strides();
    let (of_row, of_head, of_position) = (strides[0], strides[1], strides[2]);
    let pairs = x.meta.num_elements() / 2;
    let units = units(&x, pairs);
    // SAFETY: each unit checks that its pair exists, which it alone reads and writes.
    unsafe {
        turn_kernel::launch_unchecked(
            &x.client,
            grid(&x, pairs.div_ceil(units as usize)),
            CubeDim::new_1d(units),
            x.required_address_type().max(found.required_address_type()),
            x.clone().into_buffer_arg(),
            cos.clone().into_buffer_arg(),
            sin.into_buffer_arg(),
            found.clone().into_buffer_arg(),
            pairs,
            heads,
            length,
            size / 2,
            of_row,
            of_head,
            of_position,
            cos.meta.shape()[0],
            if back { -1.0 } else { 1.0 },
            element(&x),
        );
    }
    found
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn turn_kernel<F: Float>(
    x: &[F],
    cos: &[f32],
    sin: &[f32],
    found: &mut [F],
    pairs: usize,
    heads: usize,
    length: usize,
    half: usize,
    of_row: usize,
    of_head: usize,
    of_position: usize,
    rows_of_angles: usize,
    sign: f32,
    #[define(F)] _dtype: ElemType,
) {
    let pair = ABSOLUTE_POS;
    if pair < pairs {
        let at = pair % half;
        let line = pair / half;
        let position = line % length;
        let head = line / length % heads;
        let row = line / length / heads;
        let from = row * of_row + head * of_head + position * of_position + at;
        let angle = (row % rows_of_angles * length + position) * half + at;
        let one = f32::cast_from(x[from]);
        let other = f32::cast_from(x[from + half]);
        let cos = cos[angle];
        let sin = sin[angle] * sign;
        let to = line * 2 * half + at;
        found[to] = F::cast_from(one * cos - other * sin);
        found[to + half] = F::cast_from(other * cos + one * sin);
    }
}
