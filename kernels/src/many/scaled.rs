//! Products of many tensors and one factor on a device.
#![allow(unsafe_code)] // Launches without checks of bounds: the kernel checks the ends of its tensor.

use burn::backend::Cube;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::groups::{PART, groups};
use crate::cube::{Spec, UNITS, contiguous, element, grid, run_many, units, written};

/// Multiplies each tensor by the factor, in place where nothing else holds it.
pub fn scale_all(tensors: Vec<FloatTensor<Cube>>, factor: FloatTensor<Cube>) -> Vec<FloatTensor<Cube>> {
    let outputs = tensors.iter().map(|x| Spec::new(x.shape(), x.dtype())).collect();
    let inputs = std::iter::once(factor).chain(tensors).collect();
    run_many(inputs, outputs, |inputs| {
        let mut inputs = inputs.into_iter();
        let factor = inputs.next().expect("the factor comes first");
        scaled(inputs.map(contiguous).collect(), contiguous(factor))
    })
}

fn scaled(tensors: Vec<CubeTensor>, factor: CubeTensor) -> Vec<CubeTensor> {
    let found: Vec<_> = tensors.iter().map(written).collect();
    let units = units(&factor, UNITS as usize);
    for group in groups(&tensors, 2, |at| tensors[at].dtype) {
        let (mut from, mut to, mut ends) = (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
        let mut cubes = 0;
        for at in &group {
            cubes += tensors[*at].meta.num_elements().div_ceil(PART);
            from.push(tensors[*at].clone().into_buffer_arg());
            to.push(found[*at].clone().into_buffer_arg());
            ends.push(cubes);
        }
        // SAFETY: a cube beyond the last tensor's does nothing, and each reads and writes a tensor within its length.
        unsafe {
            scale_kernel::launch_unchecked(
                &factor.client,
                grid(&factor, cubes),
                CubeDim::new_1d(units),
                from,
                to,
                ends,
                factor.clone().into_buffer_arg(),
                PART,
                units,
                [element(&tensors[group[0]]), element(&factor)],
            );
        }
    }
    found
}

#[cube(launch_unchecked)]
fn scale_kernel<F: Float, S: Float>(
    from: Sequence<Box<[F]>>,
    mut to: Sequence<Box<[F]>>,
    ends: Sequence<usize>,
    factor: &[S],
    #[comptime] part: usize,
    #[comptime] units: u32,
    #[define(F, S)] _dtypes: [ElemType; 2],
) {
    let cube = CUBE_POS;
    let factor = f32::cast_from(factor[0]);
    let mut begin = 0usize;
    #[unroll]
    for i in 0..from.len() {
        let end = ends[i];
        if cube >= begin && cube < end {
            let source = &from[i];
            let target = &mut to[i];
            let mut at = (cube - begin) * part + UNIT_POS as usize;
            let last = min((cube - begin + 1) * part, source.len());
            while at < last {
                target[at] = F::cast_from(f32::cast_from(source[at]) * factor);
                at += units as usize;
            }
        }
        begin = end;
    }
}
