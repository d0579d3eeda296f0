//! Dropout on a device: one kernel computes the mask and applies it, forward and backward.
#![allow(unsafe_code)] // A launch without checks of bounds: each unit checks its elements.

use std::sync::Arc;

use burn::backend::ops::IntTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::TensorData;
use cubecl::prelude::*;

use super::DropoutOps;
use super::mask::{DropMask, OfKernel};
use crate::cube::{Spec, UNITS, contiguous, element, grid, run, together, units, written};

impl DropoutOps for Cube {
    fn dropped(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        launched(x, None, &mask)
    }
}

/// Returns `x` plus `y` with some of its elements dropped, of one shape and dtype: f32 or narrower, not empty.
pub(crate) fn dropped_onto(x: FloatTensor<Cube>, y: FloatTensor<Cube>, mask: &DropMask) -> FloatTensor<Cube> {
    launched(y, Some(x), mask)
}

fn launched(y: FloatTensor<Cube>, onto: Option<FloatTensor<Cube>>, mask: &DropMask) -> FloatTensor<Cube> {
    let output = Spec::new(y.shape(), y.dtype());
    let OfKernel { words, lines, sets, each, length, threshold, scale } = mask.of_kernel();
    let count = words.len();
    let words = Cube::int_from_data(TensorData::new(words, [count]), &y.device());
    let adds = onto.is_some();
    let inputs = [Some(y), Some(words), onto].into_iter().flatten().collect();
    let [found] = run(inputs, [output], move |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let mut next = || inputs.next().expect("as many inputs as the form has");
        let (y, words) = (next(), next());
        let found = written(&y);
        let onto = if adds { next() } else { y.clone() };
        let together = together(&[&y, &onto, &found], |together| length.is_multiple_of(together));
        let (count, units) = (y.meta.num_elements() / together, units(&y, UNITS as usize));
        // SAFETY: each unit checks that its elements exist, which it alone reads and writes. There are words of each line, and
        // of each element of one.
        unsafe {
            dropped_kernel::launch_unchecked(
                &y.client,
                grid(&y, count.div_ceil(units as usize)),
                CubeDim::new_1d(units),
                y.required_address_type(),
                together,
                y.clone().into_buffer_arg(),
                onto.into_buffer_arg(),
                words.into_buffer_arg(),
                found.clone().into_buffer_arg(),
                count,
                length / together,
                lines,
                sets,
                each,
                threshold,
                scale,
                adds,
                element(&y),
            );
        }
        [found]
    });
    found
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn dropped_kernel<F: Float, N: Size>(
    y: &[Vector<F, N>],
    onto: &[Vector<F, N>],
    words: &[u32],
    found: &mut [Vector<F, N>],
    count: usize,
    length: usize,
    lines: usize,
    sets: usize,
    each: usize,
    threshold: u32,
    scale: f32,
    #[comptime] adds: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let line = at / length;
        let (first, second) = (words[2 * line], words[2 * line + 1]);
        let steps = 2 * lines + (min(line / each, sets - 1) * length + at % length) * N::value();
        let values = Vector::<f32, N>::cast_from(y[at]);
        let mut kept = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            // Chosen, not multiplied by 0: a dropped infinity becomes 0 too.
            if hash(words[steps + i] + first, second) >= threshold {
                kept.insert(i, values.extract(i) * scale);
            }
        }
        if adds {
            kept += Vector::cast_from(onto[at]);
        }
        found[at] = Vector::cast_from(kept);
    }
}

/// See `Key::enter` of the mask on the host.
#[cube]
pub(crate) fn enter(a: u32, b: u32, step: u32) -> (u32, u32) {
    (fold(hash(a + step, b)), fold(hash(b ^ step, a)))
}

/// See `hash` of the mask on the host.
#[cube]
pub(crate) fn hash(x: u32, key: u32) -> u32 {
    let x = ((x ^ (x >> 16u32)) * 0x7feb_352du32) ^ key;
    (x ^ (x >> 15u32)) * 0x846c_a68bu32
}

#[cube]
fn fold(x: u32) -> u32 {
    x ^ (x >> 16u32)
}

/// Spreads a coordinate over all 32 bits.
#[cube]
pub(crate) fn spread(at: u32) -> u32 {
    at * 0x9e37_79b9u32
}
