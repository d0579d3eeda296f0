//! The gradients of scale and bias on a device: sums over the rows.
#![allow(unsafe_code)] // A launch without checks of bounds: the kernel checks its column and its parts.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::{COLUMNS, Tiles, column, element, empty, first_row, is_first_lane, sum_of_lanes};

/// Adds the gradients of scale and bias that cubes have found for their rows, `[parts, 2, width]` in f32, and returns the
/// sums, `[width]` each, in `dtype`.
pub(super) fn added(sums: &CubeTensor, dtype: DType) -> [CubeTensor; 2] {
    let [parts, _, width] = sums.meta.shape().dims();
    let tiles = Tiles::of(sums, parts, width);
    let added = [(); 2].map(|()| empty(sums, [width], dtype));
    let [of_scale, of_bias] = added.each_ref().map(|sums| sums.clone().into_buffer_arg());
    // SAFETY: the kernel checks that its column exists, and that its parts do.
    unsafe {
        added_kernel::launch_unchecked(
            &sums.client,
            // Few enough parts for the units of one cube.
            CubeCount::Static(width.div_ceil(COLUMNS as usize) as u32, 1, 1),
            tiles.units(),
            sums.clone().into_buffer_arg(),
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
    sums: &[f32],
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
        let mut part = first_row(0);
        while part < parts {
            scale += sums[2 * part * width + column];
            bias += sums[(2 * part + 1) * width + column];
            part += lanes as usize;
        }
    }
    let scale = sum_of_lanes(&mut shared, scale, lanes);
    let bias = sum_of_lanes(&mut shared, bias, lanes);
    if is_first_lane() && column < width {
        of_scale[column] = S::cast_from(scale);
        of_bias[column] = S::cast_from(bias);
    }
}
