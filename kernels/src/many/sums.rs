//! Sums of many pairs of tensors on a device.
#![allow(unsafe_code)] // Launches without checks of bounds: the kernel checks the ends of its tensor.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

#[cfg(feature = "cuda")]
use crate::cube::cuda::{self, Buffer, Pass};
use crate::cube::{
    PART, Spec, UNITS, contiguous, element, empty, end_of, grid, groups, run_many, units, written,
};

/// Adds each tensor to its partner, in f32, and returns the sums in `dtype`, in place where nothing else holds the first
/// tensor and it has that dtype.
pub fn add_all(
    tensors: Vec<FloatTensor<Cube>>,
    others: Vec<FloatTensor<Cube>>,
    dtype: DType,
) -> Vec<FloatTensor<Cube>> {
    let outputs = tensors.iter().map(|x| Spec::new(x.shape(), dtype)).collect();
    let count = tensors.len();
    let inputs = tensors.into_iter().chain(others).collect();
    run_many(inputs, outputs, move |inputs| {
        let mut tensors: Vec<_> = inputs.into_iter().map(contiguous).collect();
        let others = tensors.split_off(count);
        added(tensors, others, dtype)
    })
}

fn added(tensors: Vec<CubeTensor>, others: Vec<CubeTensor>, dtype: DType) -> Vec<CubeTensor> {
    let found: Vec<_> = tensors
        .iter()
        .map(|x| if x.dtype == dtype { written(x) } else { empty(x, x.meta.shape().clone(), dtype) })
        .collect();
    for group in groups(&tensors, (3, 0), |at| (tensors[at].dtype, others[at].dtype)) {
        #[cfg(feature = "cuda")]
        if cuda::serves(&tensors[0].device) {
            added_by_cuda(&group, &tensors, &others, &found);
            continue;
        }
        let (mut left, mut right) = (SequenceArg::new(), SequenceArg::new());
        let (mut sums, mut lengths) = (SequenceArg::new(), SequenceArg::new());
        let mut cubes = 0;
        for at in &group {
            let length = tensors[*at].meta.num_elements();
            cubes += length.div_ceil(PART);
            left.push(tensors[*at].clone().into_buffer_arg());
            right.push(others[*at].clone().into_buffer_arg());
            sums.push(found[*at].clone().into_buffer_arg());
            lengths.push(length);
        }
        let first = &tensors[group[0]];
        let units = units(first, UNITS as usize);
        // SAFETY: a cube beyond the last tensor's does nothing. Each other one reads and writes within the number of
        // elements of its tensor, and the partner and the sum have as many.
        unsafe {
            add_kernel::launch_unchecked(
                &first.client,
                grid(first, cubes),
                CubeDim::new_1d(units),
                left,
                right,
                sums,
                lengths,
                PART,
                units,
                [element(first), element(&others[group[0]]), element(&found[group[0]])],
            );
        }
    }
    found
}

/// The same as `add_kernel`, of more tensors at once.
#[cfg(feature = "cuda")]
fn added_by_cuda(group: &[usize], tensors: &[CubeTensor], others: &[CubeTensor], found: &[CubeTensor]) {
    let first = group[0];
    let pass = Pass {
        name: "add",
        buffers: vec![
            Buffer::read(&tensors[first]),
            Buffer::read(&others[first]),
            Buffer::written(&found[first]),
        ],
        shared: Vec::new(),
        before: String::new(),
        body: "x2 = x0 + x1;".into(),
        after: "",
    };
    let tensors: Vec<_> = group.iter().map(|at| vec![&tensors[*at], &others[*at], &found[*at]]).collect();
    pass.launch(&tensors, &[], &[], 0);
}

#[cube(launch_unchecked)]
fn add_kernel<L: Float, R: Float, S: Float>(
    left: Sequence<Box<[L]>>,
    right: Sequence<Box<[R]>>,
    mut sums: Sequence<Box<[S]>>,
    lengths: Sequence<usize>,
    #[comptime] part: usize,
    #[comptime] units: u32,
    #[define(L, R, S)] _dtypes: [ElemType; 3],
) {
    let cube = CUBE_POS;
    let mut begin = 0usize;
    #[unroll]
    for i in 0..left.len() {
        let length = lengths[i];
        let end = end_of(begin, length, part);
        if cube >= begin && cube < end {
            let (x, y) = (&left[i], &right[i]);
            let sum = &mut sums[i];
            let mut at = (cube - begin) * part + UNIT_POS as usize;
            let last = min((cube - begin + 1) * part, length);
            while at < last {
                sum[at] = S::cast_from(f32::cast_from(x[at]) + f32::cast_from(y[at]));
                at += units as usize;
            }
        }
        begin = end;
    }
}
