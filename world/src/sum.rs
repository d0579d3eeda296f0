//! Sums of buffers, in a given order, rounded once.

use std::borrow::Cow;
use std::ops::AddAssign;

use burn::tensor::{DType, Element, TensorData, bf16, f16};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// Elements per parallel task: tens of microseconds of work, which keeps small buffers on one core.
const TASK: usize = 1 << 15;

/// Elements summed at a time: a block of each buffer and of the sum fit the L1 cache.
const BLOCK: usize = 1024;

/// Returns whether tensors of this dtype can be summed.
pub fn sums(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

/// Sums buffers of one dtype, first to last, into data of dtype `to` and the given shape.
///
/// Accumulates `((b0 + b1) + b2) + ..` in f64 if `dtype` or `to` is f64 and in f32 otherwise, and rounds to `to` at the
/// end: the same buffers in the same order give the same bits on any number of threads. Both dtypes must satisfy
/// [`sums`], and there must be at least one buffer.
pub fn sum(dtype: DType, to: DType, shape: Vec<usize>, buffers: &[&[u8]]) -> TensorData {
    let wide = dtype == DType::F64 || to == DType::F64;
    match (dtype, wide) {
        (DType::F64, _) => summed_64(to, shape, buffers, |from: &[f64], to| to.copy_from_slice(from)),
        (DType::F32, true) => summed_64(to, shape, buffers, |from: &[f32], to| each(from, to, f64::from)),
        (DType::F16, true) => summed_64(to, shape, buffers, |from: &[f16], to| each(from, to, f16::to_f64)),
        (_, true) => summed_64(to, shape, buffers, |from: &[bf16], to| each(from, to, bf16::to_f64)),
        (DType::F32, _) => summed_32(to, shape, buffers, |from: &[f32], to| to.copy_from_slice(from)),
        (DType::F16, _) => summed_32(to, shape, buffers, |from: &[f16], to| from.convert_to_f32_slice(to)),
        (_, _) => summed_32(to, shape, buffers, |from: &[bf16], to| each(from, to, widened)),
    }
}

fn summed_32<From: Pod + Sync>(
    to: DType,
    shape: Vec<usize>,
    buffers: &[&[u8]],
    widen: impl Fn(&[From], &mut [f32]) + Sync,
) -> TensorData {
    match to {
        DType::F16 => summed(shape, buffers, widen, |from, to: &mut [f16]| to.convert_from_f32_slice(from)),
        DType::BF16 => summed(shape, buffers, widen, |from, to: &mut [bf16]| to.convert_from_f32_slice(from)),
        _ => summed(shape, buffers, widen, |from, to: &mut [f32]| to.copy_from_slice(from)),
    }
}

fn summed_64<From: Pod + Sync>(
    to: DType,
    shape: Vec<usize>,
    buffers: &[&[u8]],
    widen: impl Fn(&[From], &mut [f64]) + Sync,
) -> TensorData {
    match to {
        DType::F32 => summed(shape, buffers, widen, |from, to: &mut [f32]| each(from, to, |x| x as f32)),
        DType::F16 => summed(shape, buffers, widen, |from, to: &mut [f16]| each(from, to, f16::from_f64)),
        DType::BF16 => summed(shape, buffers, widen, |from, to: &mut [bf16]| each(from, to, bf16::from_f64)),
        _ => summed(shape, buffers, widen, |from, to: &mut [f64]| to.copy_from_slice(from)),
    }
}

/// Widens a bf16, which is the upper half of an f32. Without the check for NaN of [`bf16::to_f32`], the compiler turns a
/// loop over it into vectors.
#[inline(always)]
fn widened(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

fn each<From: Copy, To>(from: &[From], to: &mut [To], convert: impl Fn(From) -> To) {
    for (from, to) in from.iter().zip(to) {
        *to = convert(*from);
    }
}

fn summed<From: Pod + Sync, Sum: Copy + Default + AddAssign, To: Element + Default + Pod + Send>(
    shape: Vec<usize>,
    buffers: &[&[u8]],
    widen: impl Fn(&[From], &mut [Sum]) + Sync,
    narrow: impl Fn(&[Sum], &mut [To]) + Sync,
) -> TensorData {
    let buffers: Vec<Cow<[From]>> = buffers.iter().map(|bytes| elements(bytes)).collect();
    let mut result = vec![To::default(); shape.iter().product()];
    result.par_chunks_mut(TASK).enumerate().for_each(|(task, result)| {
        let (mut sum, mut next) = ([Sum::default(); BLOCK], [Sum::default(); BLOCK]);
        for (block, result) in result.chunks_mut(BLOCK).enumerate() {
            let at = task * TASK + block * BLOCK;
            let (sum, next) = (&mut sum[..result.len()], &mut next[..result.len()]);
            for (i, buffer) in buffers.iter().enumerate() {
                let buffer = &buffer[at..at + result.len()];
                // The sum starts with the first buffer, not with zero: 0.0 + -0.0 would give 0.0.
                if i == 0 {
                    widen(buffer, sum);
                    continue;
                }
                widen(buffer, next);
                sum.iter_mut().zip(&*next).for_each(|(sum, next)| *sum += *next);
            }
            narrow(sum, result);
        }
    });
    TensorData::new(result, shape)
}

/// Views a buffer as its elements: in place, unless its address is unaligned.
fn elements<E: Pod>(bytes: &[u8]) -> Cow<'_, [E]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => Cow::Borrowed(elements),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}
