//! Sums of squares on a device: each cube sums a part of one tensor, and one more cube adds the parts in order, so that
//! a sum has the same bits each time.
#![allow(unsafe_code)] // Launches without checks of bounds: the kernel checks the end of its tensor.

use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

#[cfg(feature = "cuda")]
use crate::cube::cuda::{self, Buffer, Pass};
use crate::cube::{
    PART, Spec, UNITS, contiguous, element, empty, end_of, grid, groups, run, sum_of_cube, total, units,
};

/// Returns the sum of the squares of all elements, or its `root`.
pub fn sum_of_squares(tensors: Vec<FloatTensor<Cube>>, root: bool) -> FloatTensor<Cube> {
    let [sum] = run(tensors, [Spec::new([1], DType::F32)], move |tensors| [sum(tensors, root)]);
    sum
}

fn sum(tensors: Vec<CubeTensor>, root: bool) -> CubeTensor {
    let tensors: Vec<_> = tensors.into_iter().map(contiguous).collect();
    let first = &tensors[0];
    let parts_of = |x: &CubeTensor| x.meta.num_elements().div_ceil(PART);
    let count: usize = tensors.iter().map(parts_of).sum();
    let parts = empty(first, [count.max(1)], DType::F32);
    let units = units(first, UNITS as usize);
    let mut done = 0;
    for group in groups(&tensors, (1, 0), |at| tensors[at].dtype) {
        #[cfg(feature = "cuda")]
        if cuda::serves(&first.device) {
            summed_by_cuda(&group, &tensors, &parts, done);
            done += group.iter().map(|at| parts_of(&tensors[*at])).sum::<usize>();
            continue;
        }
        let mut buffers = SequenceArg::new();
        let mut lengths = SequenceArg::new();
        let mut cubes = 0;
        for x in group.iter().map(|at| &tensors[*at]) {
            cubes += parts_of(x);
            buffers.push(x.clone().into_buffer_arg());
            lengths.push(x.meta.num_elements());
        }
        // SAFETY: a cube beyond the last tensor's does nothing, and each reads a tensor within its number of elements.
        unsafe {
            part_kernel::launch_unchecked(
                &first.client,
                grid(first, cubes),
                CubeDim::new_1d(units),
                buffers,
                lengths,
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
    total(parts, count, root)
}

/// The same as `part_kernel`, of more tensors at once.
#[cfg(feature = "cuda")]
fn summed_by_cuda(group: &[usize], tensors: &[CubeTensor], parts: &CubeTensor, done: usize) {
    let pass = Pass {
        name: "squares",
        buffers: vec![Buffer::read(&tensors[group[0]])],
        shared: vec![Buffer::written(parts)],
        before: String::new(),
        body: "sum = __fmaf_rn(x0, x0, sum);".into(),
        after: "sum = sum_of_block(sum);\nif (threadIdx.x == 0) s0[info.done + blockIdx.x] = sum;",
    };
    let tensors: Vec<_> = group.iter().map(|at| vec![&tensors[*at]]).collect();
    pass.launch(&tensors, &[parts], &[], done);
}

#[cube(launch_unchecked)]
fn part_kernel<F: Float>(
    tensors: Sequence<Box<[F]>>,
    lengths: Sequence<usize>,
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
        let length = lengths[i];
        let end = end_of(begin, length, part);
        if cube >= begin && cube < end {
            let tensor = &tensors[i];
            let mut at = (cube - begin) * part + UNIT_POS as usize;
            let last = min((cube - begin + 1) * part, length);
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
