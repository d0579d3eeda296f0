//! Gradients of a table on a device: one cube sums those of one row, in f32 and in a fixed order.
//!
//! Burn's kernel has one unit for each column, which reads all ids one after the other, and adds in the dtype of the table.
//! Here the units of a cube share the ids: each counts those of the cube's row, and where there are any, all units add their
//! gradients. Few rows, as those of token types, are shared by several cubes, whose sums are added by one more kernel.
#![allow(unsafe_code)] // A launch without checks of bounds: the kernel checks its row and its ids.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{EmbeddingRows, scattered};
use crate::cube::{Spec, contiguous, element, empty, grid, run, sum_of_cube, sums_in, units};
use crate::off::Kernel;

impl EmbeddingRows for Cube {
    fn scatter(
        grad: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: usize,
        dtype: DType,
    ) -> FloatTensor<Self> {
        let width = grad.shape()[2];
        let narrow = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let is_empty = grad.shape().num_elements() == 0 || rows == 0;
        if is_empty || !narrow(grad.dtype()) || !narrow(dtype) || Kernel::Embedding.is_off() {
            return scattered::<Self>(grad, ids, rows, dtype);
        }
        let [sums] = run(vec![grad, ids], [Spec::new([rows * width], dtype)], move |inputs| {
            let [grad, ids] = inputs.try_into().expect("two inputs");
            [summed(contiguous(grad), contiguous(ids), rows, dtype)]
        });
        Self::float_reshape(sums, Shape::new([rows, width]))
    }
}

/// Cubes that keep a device busy.
const CUBES: usize = 512;

/// The fewest ids of a cube that shares a row with others.
const IDS: usize = if cfg!(test) { 8 } else { 256 };

/// Returns the sums of all rows, one after the other.
fn summed(grad: CubeTensor, ids: CubeTensor, rows: usize, dtype: DType) -> CubeTensor {
    let (count, width) = (ids.meta.num_elements(), grad.meta.shape()[2]);
    let parts = (CUBES / rows).min(count / IDS).max(1);
    let each = count.div_ceil(parts);
    let parts = count.div_ceil(each);
    let sums = match parts {
        1 => empty(&grad, [rows * width], dtype),
        parts => empty(&grad, [parts, rows * width], DType::F32),
    };
    let units = units(&grad, width.max(each));
    let cubes = parts * rows;
    // SAFETY: each cube checks that it has a row, writes its sums alone, and reads ids and gradients within their count.
    unsafe {
        rows_kernel::launch_unchecked(
            &grad.client,
            grid(&grad, cubes),
            CubeDim::new_1d(units),
            grad.required_address_type().max(sums.required_address_type()),
            grad.clone().into_buffer_arg(),
            ids.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            cubes,
            rows,
            width,
            count,
            each,
            units,
            [element(&grad), element(&ids), element(&sums)],
        );
    }
    if parts == 1 { sums } else { sums_in(sums, dtype) }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rows_kernel<G: Float, I: Numeric, S: Float>(
    grad: &[G],
    ids: &[I],
    sums: &mut [S],
    cubes: usize,
    rows: usize,
    width: usize,
    count: usize,
    each: usize,
    #[comptime] units: u32,
    #[define(G, I, S)] _dtypes: [ElemType; 3],
) {
    let cube = CUBE_POS;
    if cube >= cubes {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let step = units as usize;
    let row = cube % rows;
    let first = cube / rows * each;
    let end = min(first + each, count);
    let mut own = 0.0f32;
    let mut at = first + UNIT_POS as usize;
    while at < end {
        if usize::cast_from(ids[at]) == row {
            own += 1.0;
        }
        at += step;
    }
    let all = sum_of_cube(&mut shared, own, units);
    sync_cube();
    shared[UNIT_POS as usize] = own;
    sync_cube();

    let mut column = UNIT_POS as usize;
    while column < width {
        let mut sum = 0.0f32;
        let mut left = all;
        let mut unit = 0usize;
        while left > 0.0 {
            let mut of_unit = shared[unit];
            left -= of_unit;
            let mut at = first + unit;
            while of_unit > 0.0 {
                if usize::cast_from(ids[at]) == row {
                    sum += f32::cast_from(grad[at * width + column]);
                    of_unit -= 1.0;
                }
                at += step;
            }
            unit += 1;
        }
        sums[cube * width + column] = S::cast_from(sum);
        column += step;
    }
}
