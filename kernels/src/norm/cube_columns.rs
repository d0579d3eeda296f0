//! The gradients of scale and bias on a device: sums over the rows, in parts that a second kernel adds in order.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its column.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::{contiguous, element, empty, parts, rows_and_width, units};

/// Returns the gradients of scale and bias.
pub(super) fn of_columns(inputs: Vec<CubeTensor>, centered: bool) -> [CubeTensor; 2] {
    let mut inputs = inputs.into_iter().map(contiguous);
    let mut next = || inputs.next().expect("as many inputs as the form has");
    let (x, grad) = (next(), next());
    let mean = centered.then(&mut next);
    let inverse = next();
    let mean = mean.unwrap_or_else(|| inverse.clone());
    let (rows, width) = rows_and_width(&x);
    let (each, count) = parts(rows);
    let partial = empty(&x, [count, 2 * width], DType::F32);
    let found = || empty(&x, [width], DType::F32);
    let [of_scale, of_bias] = [found(), found()];
    let units = units(&x, width);
    let across = width.div_ceil(units as usize) as u32;
    // SAFETY: the kernels check that their column exists, and that its rows and parts do.
    unsafe {
        part_kernel::launch_unchecked(
            &x.client,
            CubeCount::Static(across, count as u32, 1),
            CubeDim::new_1d(units),
            x.clone().into_buffer_arg(),
            grad.clone().into_buffer_arg(),
            mean.into_buffer_arg(),
            inverse.into_buffer_arg(),
            partial.clone().into_buffer_arg(),
            rows,
            width,
            each,
            centered,
            [element(&x), element(&grad)],
        );
        sum_kernel::launch_unchecked(
            &x.client,
            CubeCount::Static(across, 1, 1),
            CubeDim::new_1d(units),
            partial.into_buffer_arg(),
            of_scale.clone().into_buffer_arg(),
            of_bias.clone().into_buffer_arg(),
            count,
            width,
        );
    }
    [of_scale, of_bias]
}

#[cube(launch_unchecked)]
fn part_kernel<F: Float, G: Float>(
    x: &[F],
    grad: &[G],
    means: &[f32],
    inverses: &[f32],
    partial: &mut [f32],
    rows: usize,
    width: usize,
    each: usize,
    #[comptime] centered: bool,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let column = (CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X) as usize;
    if column < width {
        let part = CUBE_POS_Y as usize;
        let mut row = part * each;
        let end = min(row + each, rows);
        let mut of_scale = 0.0f32;
        let mut of_bias = 0.0f32;
        while row < end {
            let mut mean = 0.0f32;
            if centered {
                mean = means[row];
            }
            let slope = f32::cast_from(grad[row * width + column]);
            of_scale += slope * (f32::cast_from(x[row * width + column]) - mean) * inverses[row];
            of_bias += slope;
            row += 1;
        }
        partial[2 * part * width + column] = of_scale;
        partial[(2 * part + 1) * width + column] = of_bias;
    }
}

#[cube(launch_unchecked)]
fn sum_kernel(partial: &[f32], of_scale: &mut [f32], of_bias: &mut [f32], count: usize, width: usize) {
    let column = ABSOLUTE_POS;
    if column < width {
        let mut scale = 0.0f32;
        let mut bias = 0.0f32;
        let mut part = 0usize;
        while part < count {
            scale += partial[2 * part * width + column];
            bias += partial[(2 * part + 1) * width + column];
            part += 1;
        }
        of_scale[column] = scale;
        of_bias[column] = bias;
    }
}
