//! Sums of squares on a device: each cube sums a part of one tensor, and one more cube adds the parts in order, so that
//! a sum has the same bits each time.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks the ends of its tensor and of the parts.

use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::{PART, Spec, UNITS, contiguous, element, empty, grid, groups, run, sum_of_cube, units};

/// Returns the sum of the squares of all elements.
pub fn sum_of_squares(tensors: Vec<FloatTensor<Cube>>) -> FloatTensor<Cube> {
    let [sum] = run(tensors, [Spec::new([1], DType::F32)], |tensors| [sum(tensors)]);
    sum
}

fn sum(tensors: Vec<CubeTensor>) -> CubeTensor {
    let first = &tensors[0];
    let parts_of = |x: &CubeTensor| x.meta.num_elements().div_ceil(PART);
    let count: usize = tensors.iter().map(parts_of).sum();
    let parts = empty(first, [count.max(1)], DType::F32);
    let total = empty(first, [1], DType::F32);
    let units = units(first, UNITS as usize);
    let mut done = 0;
    for group in groups(&tensors, 1, |at| tensors[at].dtype) {
        let mut buffers = SequenceArg::new();
        let mut ends = SequenceArg::new();
        let mut cubes = 0;
        for x in group.iter().map(|at| &tensors[*at]) {
            cubes += parts_of(x);
            buffers.push(contiguous(x.clone()).into_buffer_arg());
            ends.push(cubes);
        }
        // SAFETY: a cube beyond the last tensor's does nothing, and each reads a tensor within its length.
        unsafe {
            part_kernel::launch_unchecked(
                &first.client,
                grid(first, cubes),
                CubeDim::new_1d(units),
                buffers,
                ends,
                parts.clone().into_buffer_arg(),
                done,
                cubes,
                PART,
                units,
                element(&tensors[group[0]]),
            );
        }
        done += cubes;
    }
    // SAFETY: the kernel reads the parts that were written, and writes one sum.
    unsafe {
        total_kernel::launch_unchecked(
            &first.client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(units),
            parts.into_buffer_arg(),
            total.clone().into_buffer_arg(),
            count,
            units,
        );
    }
    total
}

#[cube(launch_unchecked)]
fn part_kernel<F: Float>(
    tensors: Sequence<Box<[F]>>,
    ends: Sequence<usize>,
    parts: &mut [f32],
    done: usize,
    cubes: usize,
    #[comptime] part: usize,
    #[comptime] units: u32,
    #[define(F)] _dtype: ElemType,
) {
    let cube = CUBE_POS;
    if cube >= cubes {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let mut sum = 0.0f32;
    let mut begin = 0usize;
    #[unroll]
    for i in 0..tensors.len() {
        let end = ends[i];
        if cube >= begin && cube < end {
            let tensor = &tensors[i];
            let mut at = (cube - begin) * part + UNIT_POS as usize;
            let last = min((cube - begin + 1) * part, tensor.len());
            while at < last {
                let value = f32::cast_from(tensor[at]);
                sum += value * value;
                at += units as usize;
            }
        }
        begin = end;
    }
    let sum = sum_of_cube(&mut shared, sum, units);
    if UNIT_POS == 0 {
        parts[done + cube] = sum;
    }
}

#[cube(launch_unchecked)]
fn total_kernel(parts: &[f32], total: &mut [f32], count: usize, #[comptime] units: u32) {
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < count {
        sum += parts[at];
        at += units as usize;
    }
    let sum = sum_of_cube(&mut shared, sum, units);
    if UNIT_POS == 0 {
        total[0] = sum;
    }
}
