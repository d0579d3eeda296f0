//! Sums over the rows of a matrix: the gradients of biases and scales.
//!
//! Each cube sums some rows of some columns; a second kernel adds the parts in order, so that a sum has the same bits
//! each time.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its column.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{contiguous, element, empty, units};

/// The rows of one part.
const ROWS: usize = 64;

/// The most parts, so that the second kernel is short: longer matrices have more rows in a part.
const PARTS: usize = 128;

/// Returns the rows of each part, and the number of parts.
pub(crate) fn parts(rows: usize) -> (usize, usize) {
    let each = rows.div_ceil(PARTS).max(ROWS);
    (each, rows.div_ceil(each))
}

/// Sums `[rows, columns]` over its rows, in f32, and returns `[columns]` in the dtype of `x`.
pub(crate) fn column_sums(x: CubeTensor) -> CubeTensor {
    let x = contiguous(x);
    let [rows, columns] = x.meta.shape().dims();
    let (each, count) = parts(rows);
    let partial = empty(&x, [count, columns], DType::F32);
    let units = units(&x, columns);
    let across = columns.div_ceil(units as usize) as u32;
    // SAFETY: the kernel checks that its column exists, and that its rows do.
    unsafe {
        part_kernel::launch_unchecked(
            &x.client,
            CubeCount::Static(across, count as u32, 1),
            CubeDim::new_1d(units),
            x.clone().into_buffer_arg(),
            partial.clone().into_buffer_arg(),
            rows,
            columns,
            each,
            element(&x),
        );
    }
    let dtype = x.dtype;
    add_parts(partial, dtype)
}

/// Adds the parts `[parts, columns]`, in f32, and returns `[columns]` in `dtype`.
pub(crate) fn add_parts(partial: CubeTensor, dtype: DType) -> CubeTensor {
    let [count, columns] = partial.meta.shape().dims();
    let sums = empty(&partial, [columns], dtype);
    let units = units(&partial, columns);
    // SAFETY: the kernel checks that its column exists.
    unsafe {
        sum_kernel::launch_unchecked(
            &partial.client,
            CubeCount::Static(columns.div_ceil(units as usize) as u32, 1, 1),
            CubeDim::new_1d(units),
            partial.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            count,
            columns,
            element(&sums),
        );
    }
    sums
}

#[cube(launch_unchecked)]
fn part_kernel<F: Float>(
    x: &[F],
    partial: &mut [f32],
    rows: usize,
    columns: usize,
    each: usize,
    #[define(F)] _dtype: ElemType,
) {
    let column = (CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X) as usize;
    if column < columns {
        let part = CUBE_POS_Y as usize;
        let mut row = part * each;
        let end = min(row + each, rows);
        let mut sum = 0.0f32;
        while row < end {
            sum += f32::cast_from(x[row * columns + column]);
            row += 1;
        }
        partial[part * columns + column] = sum;
    }
}

#[cube(launch_unchecked)]
fn sum_kernel<F: Float>(
    partial: &[f32],
    sums: &mut [F],
    count: usize,
    columns: usize,
    #[define(F)] _dtype: ElemType,
) {
    let column = ABSOLUTE_POS;
    if column < columns {
        let mut sum = 0.0f32;
        let mut part = 0usize;
        while part < count {
            sum += partial[part * columns + column];
            part += 1;
        }
        sums[column] = F::cast_from(sum);
    }
}
