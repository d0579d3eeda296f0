//! Conversion between half precision and f32 on Flex: on all cores, in vectors, and only of the elements that a view
//! shows.

use std::cmp::Reverse;

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Element, Flex, ops::FloatTensorOps};
use burn::tensor::{Bytes, DType, FloatDType, f16};
use bytemuck::{Pod, zeroed_vec};
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::{HalfOps, bf16};
use crate::off::Kernel;
use crate::zero_results::are_zero;

/// Elements that one task converts: tens of microseconds of work, so that small tensors stay on
/// one core.
const TASK: usize = 1 << 15;

/// Elements converted at a time: they fit the L1 cache, and hold many runs of a view.
const BLOCK: usize = 256;

impl HalfOps for Flex {
    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        match (x.dtype(), DType::from(dtype)) {
            (from, to) if from == to => x,
            _ if Kernel::Casts.is_off() => Self::float_cast(x, dtype),
            (DType::BF16, DType::F32) => converted(&x, bf16::widen),
            (DType::F32, DType::BF16) => converted(&x, bf16::narrow),
            (DType::F16, DType::F32) => converted(&x, |from: &[f16], to| from.convert_to_f32_slice(to)),
            (DType::F32, DType::F16) => converted(&x, |from, to: &mut [f16]| to.convert_from_f32_slice(from)),
            _ => Self::float_cast(x, dtype),
        }
    }
}

/// Maps each element of `x`, in the order of memory: a transposed operand stays transposed.
fn converted<From, To>(x: &FlexTensor, convert: impl Fn(&[From], &mut [To]) + Sync) -> FlexTensor
where
    From: Element + Pod + Sync,
    To: Element + Pod + Send,
{
    let shape = x.layout().shape();
    if shape.num_elements() == 0 {
        return FlexTensor::empty(shape.clone(), To::dtype());
    }
    let Some(view) = View::of(x.layout()) else {
        return converted(&x.to_contiguous(), convert);
    };
    if are_zero() {
        let zeros = Bytes::from_elems(zeroed_vec::<To>(view.elements()));
        return FlexTensor::new(zeros, Layout::new(shape.clone(), view.strides, 0), To::dtype());
    }
    let from = x.storage::<From>();
    let block_at = |at: usize, length: usize| {
        let mut block = [To::default(); BLOCK];
        let (mut rest, mut at) = (&mut block[..length], at);
        while !rest.is_empty() {
            let source = &from[view.source(at)..][..(view.run - at % view.run).min(rest.len())];
            let (to, after) = rest.split_at_mut(source.len());
            convert(source, to);
            (rest, at) = (after, at + source.len());
        }
        block
    };
    // Collecting whole blocks avoids zeroing the memory first on one core.
    let (blocks, tail) = (view.elements() / BLOCK, view.elements() % BLOCK);
    let mut out = Vec::with_capacity(blocks + 1);
    let whole = (0..blocks).into_par_iter().with_min_len(TASK / BLOCK);
    whole.map(|block| block_at(block * BLOCK, BLOCK)).collect_into_vec(&mut out);
    let mut out = out.into_flattened();
    out.extend_from_slice(&block_at(blocks * BLOCK, tail)[..tail]);
    FlexTensor::new(Bytes::from_elems(out), Layout::new(shape.clone(), view.strides, 0), To::dtype())
}

/// The elements that a layout shows, each once, in memory order.
struct View {
    start: usize,
    /// Axes over runs as (size, stride), the widest stride first.
    axes: Vec<(usize, usize)>,
    /// Elements of a run, which are adjacent in memory.
    run: usize,
    /// The layout's strides after the other elements are removed.
    strides: Vec<isize>,
}

impl View {
    /// Shorter runs cost more than a copy by a kernel for strides.
    const SHORTEST: usize = 8;

    /// Returns `None` if the layout has negative strides, or if its runs are short.
    fn of(layout: &Layout) -> Option<Self> {
        let (shape, strides) = (layout.shape(), layout.strides());
        if strides.iter().any(|&stride| stride < 0) {
            return None;
        }
        let mut order: Vec<usize> =
            (0..strides.len()).filter(|&axis| shape[axis] > 1 && strides[axis] > 0).collect();
        order.sort_by_key(|&axis| Reverse(strides[axis]));

        // An axis of size 1 may have any stride; a broadcast axis keeps 0.
        let mut packed: Vec<isize> =
            (0..strides.len()).map(|axis| if shape[axis] > 1 { 0 } else { 1 }).collect();
        let mut elements = 1;
        for &axis in order.iter().rev() {
            packed[axis] = elements as isize;
            elements *= shape[axis];
        }

        let mut axes: Vec<(usize, usize)> = Vec::new();
        for (size, stride) in order.into_iter().map(|axis| (shape[axis], strides[axis] as usize)) {
            match axes.last_mut() {
                Some(outer) if outer.1 == size * stride => *outer = (outer.0 * size, stride),
                _ => axes.push((size, stride)),
            }
        }
        let run = axes.pop_if(|axis| axis.1 == 1).map_or(1, |(size, _)| size);
        let long = axes.is_empty() || run >= Self::SHORTEST;
        long.then_some(Self { start: layout.start_offset(), axes, run, strides: packed })
    }

    fn elements(&self) -> usize {
        self.axes.iter().map(|(size, _)| size).product::<usize>() * self.run
    }

    /// Returns the index in the storage of the shown element `at`.
    fn source(&self, at: usize) -> usize {
        let mut run = at / self.run;
        let mut offset = self.start + at % self.run;
        for &(size, stride) in self.axes.iter().rev() {
            offset += run % size * stride;
            run /= size;
        }
        offset
    }
}
