//! The gradients of scale and bias on a device: sums over the rows.
#![allow(unsafe_code)] // Launches without checks of bounds: the kernel checks its column and its rows.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::{
    COLUMNS, Tiles, column, contiguous, element, empty, first_row, is_first_lane, rows_and_width,
    sum_of_lanes,
};

/// Returns the gradients of scale and bias, in `dtype`.
pub(super) fn of_columns(inputs: Vec<CubeTensor>, centered: bool, dtype: DType) -> [CubeTensor; 2] {
    let mut inputs = inputs.into_iter().map(contiguous);
    let mut next = || inputs.next().expect("as many inputs as the form has");
    let (x, grad) = (next(), next());
    let mean = centered.then(&mut next);
    let inverse = next();
    let mean = mean.unwrap_or_else(|| inverse.clone());
    let (rows, width) = rows_and_width(&x);
    let tiles = Tiles::of(&x, rows, width);
    let sums = [(); 2].map(|()| match tiles.parts {
        1 => empty(&x, [width], dtype),
        parts => empty(&x, [parts, width], DType::F32),
    });
    let [of_scale, of_bias] = sums.each_ref().map(|sums| sums.clone().into_buffer_arg());
    // SAFETY: the kernel checks that its column exists, and that its rows do.
    unsafe {
        sums_kernel::launch_unchecked(
            &x.client,
            tiles.grid(),
            tiles.units(),
            x.clone().into_buffer_arg(),
            grad.clone().into_buffer_arg(),
            mean.into_buffer_arg(),
            inverse.into_buffer_arg(),
            of_scale,
            of_bias,
            rows,
            width,
            tiles.each,
            centered,
            tiles.lanes,
            [element(&x), element(&grad), element(&sums[0])],
        );
    }
    if tiles.parts == 1 { sums } else { added(sums, dtype) }
}

/// Adds what the cubes that share the rows have summed, `[parts, width]`.
fn added(sums: [CubeTensor; 2], dtype: DType) -> [CubeTensor; 2] {
    let [parts, width] = sums[0].meta.shape().dims();
    let tiles = Tiles::of(&sums[0], parts, width);
    let added = [(); 2].map(|()| empty(&sums[0], [width], dtype));
    let [of_scale, of_bias] = added.each_ref().map(|sums| sums.clone().into_buffer_arg());
    let (client, from) = (sums[0].client.clone(), sums.map(CubeTensor::into_buffer_arg));
    let [scales, biases] = from;
    // SAFETY: the kernel checks that its column exists, and that its rows do.
    unsafe {
        added_kernel::launch_unchecked(
            &client,
            // Few enough for the units of one cube.
            CubeCount::Static(width.div_ceil(COLUMNS as usize) as u32, 1, 1),
            tiles.units(),
            scales,
            biases,
            of_scale,
            of_bias,
            parts,
            width,
            tiles.lanes,
            element(&added[0]),
        );
    }
    added
}

#[cube(launch_unchecked)]
fn added_kernel<S: Float>(
    scales: &[f32],
    biases: &[f32],
    of_scale: &mut [S],
    of_bias: &mut [S],
    parts: usize,
    width: usize,
    #[comptime] lanes: u32,
    #[define(S)] _dtype: ElemType,
) {
    let mut shared = Shared::<[f32]>::new_slice((lanes * COLUMNS) as usize);
    let column = column();
    let mut scale = 0.0f32;
    let mut bias = 0.0f32;
    if column < width {
        let mut row = first_row(0);
        while row < parts {
            scale += scales[row * width + column];
            bias += biases[row * width + column];
            row += lanes as usize;
        }
    }
    let scale = sum_of_lanes(&mut shared, scale, lanes);
    let bias = sum_of_lanes(&mut shared, bias, lanes);
    if is_first_lane() && column < width {
        of_scale[column] = S::cast_from(scale);
        of_bias[column] = S::cast_from(bias);
    }
}

#[cube(launch_unchecked)]
fn sums_kernel<F: Float, G: Float, S: Float>(
    x: &[F],
    grad: &[G],
    means: &[f32],
    inverses: &[f32],
    of_scale: &mut [S],
    of_bias: &mut [S],
    rows: usize,
    width: usize,
    each: usize,
    #[comptime] centered: bool,
    #[comptime] lanes: u32,
    #[define(F, G, S)] _dtypes: [ElemType; 3],
) {
    let mut shared = Shared::<[f32]>::new_slice((lanes * COLUMNS) as usize);
    let column = column();
    let mut scale = 0.0f32;
    let mut bias = 0.0f32;
    if column < width {
        let mut row = first_row(each);
        let end = min((CUBE_POS_Y as usize + 1) * each, rows);
        while row < end {
            let mut mean = 0.0f32;
            if centered {
                mean = means[row];
            }
            let slope = f32::cast_from(grad[row * width + column]);
            scale += slope * (f32::cast_from(x[row * width + column]) - mean) * inverses[row];
            bias += slope;
            row += lanes as usize;
        }
    }
    let scale = sum_of_lanes(&mut shared, scale, lanes);
    let bias = sum_of_lanes(&mut shared, bias, lanes);
    if is_first_lane() && column < width {
        let place = CUBE_POS_Y as usize * width + column;
        of_scale[place] = S::cast_from(scale);
        of_bias[place] = S::cast_from(bias);
    }
}
