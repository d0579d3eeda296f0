//! Rows on all cores, of any view.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, bf16, f16};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::ops::{RotaryOps, composed};
use crate::flex::{Buffer, Lane, Part, TASK, adjacent, elements, tensor};
use crate::off::Kernel;

impl RotaryOps for Flex {
    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self> {
        match (x.dtype(), cos.dtype(), sin.dtype()) {
            _ if x.layout().num_elements() == 0 => x,
            _ if Kernel::Rotary.is_off() => composed::<Self>(x, cos, sin, back),
            (DType::F32, DType::F32, DType::F32) => turned::<f32>(x, cos, sin, back),
            (DType::BF16, DType::F32, DType::F32) => turned::<bf16>(x, cos, sin, back),
            (DType::F16, DType::F32, DType::F32) => turned::<f16>(x, cos, sin, back),
            _ => composed::<Self>(x, cos, sin, back),
        }
    }
}

fn turned<T: Lane>(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, back: bool) -> FlexTensor {
    // The heads of a projection are a view whose rows are whole.
    let strides = x.layout().strides();
    let rows_are_whole = strides[3] == 1 && strides.iter().all(|stride| *stride >= 0);
    let x = if rows_are_whole { x } else { x.to_contiguous() };
    let (cos, sin) = (adjacent(cos), adjacent(sin));
    let shape = x.layout().shape().clone();
    let [_, heads, length, size] = shape.dims();
    let rows = shape.num_elements() / size;
    let strides = x.layout().strides();
    let strides = [strides[0], strides[1], strides[2]].map(|stride| stride as usize);
    let of_all = cos.layout().shape()[0] == 1;
    let (from, start) = (x.storage::<T>(), x.layout().start_offset());
    let (cos, sin) = (elements::<f32>(&cos), elements::<f32>(&sin));
    let at_once = (TASK / size).max(1);
    let arch = Arch::new();
    let mut found = Buffer::<T>::new(rows * size);
    found.parts(at_once * size).enumerate().for_each(|(part, found)| {
        let first = part * at_once;
        let row = |row: usize| {
            let [of_batch, of_head, at] = [row / length / heads, row / length % heads, row % length];
            let offset = start + of_batch * strides[0] + of_head * strides[1] + at * strides[2];
            let angles = if of_all { at } else { of_batch * length + at } * (size / 2);
            (&from[offset..][..size], &cos[angles..][..size / 2], &sin[angles..][..size / 2])
        };
        let rows = first..(first + at_once).min(rows);
        arch.dispatch(Turn { rows: rows.map(row), found, size, back });
    });
    tensor(found.finish(), shape)
}

/// The rows of one task, compiled for the vectors of each kind of processor.
struct Turn<'a, I, T> {
    rows: I,
    found: Part<'a, T>,
    size: usize,
    back: bool,
}

impl<'a, T: Lane, I: Iterator<Item = (&'a [T], &'a [f32], &'a [f32])>> NullaryFnOnce for Turn<'_, I, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { rows, mut found, size, back } = self;
        let (half, sign) = (size / 2, if back { -1.0 } else { 1.0 });
        let mut pieces = found.pieces(half);
        for (row, cos, sin) in rows {
            let (one, other) = row.split_at(half);
            let (Some(first), Some(second)) = (pieces.next(), pieces.next()) else { return };
            // Makes the equal lengths visible to the compiler.
            let (one, other) = (&one[..half], &other[..half]);
            let (cos, sin) = (&cos[..half], &sin[..half]);
            first.write(half, |at| T::narrow(one[at].wide() * cos[at] - other[at].wide() * (sign * sin[at])));
            second
                .write(half, |at| T::narrow(other[at].wide() * cos[at] + one[at].wide() * (sign * sin[at])));
        }
    }
}
