//! Sums and maxima over the units of a cube, and the sum of the parts of a sum.
#![allow(unsafe_code)] // A launch without checks of bounds: the kernel checks the end of the parts.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{UNITS, empty, units};

/// Adds the first `count` of the parts, in f32, and returns the sum or its `root`, `[1]`. One cube adds them in a fixed order,
/// so that the sum has the same bits each time.
pub(crate) fn total(parts: CubeTensor, count: usize, root: bool) -> CubeTensor {
    let total = empty(&parts, [1], DType::F32);
    let units = units(&parts, UNITS as usize);
    // SAFETY: the kernel reads the parts within their count, and writes one sum.
    unsafe {
        total_kernel::launch_unchecked(
            &total.client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(units),
            parts.into_buffer_arg(),
            total.clone().into_buffer_arg(),
            count,
            root,
            units,
        );
    }
    total
}

#[cube(launch_unchecked)]
fn total_kernel(
    parts: &[f32],
    total: &mut [f32],
    count: usize,
    #[comptime] root: bool,
    #[comptime] units: u32,
) {
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < count {
        sum += parts[at];
        at += units as usize;
    }
    let mut sum = sum_of_cube(&mut shared, sum, units);
    if root {
        sum = sum.sqrt();
    }
    if UNIT_POS == 0 {
        total[0] = sum;
    }
}

/// Returns the sum of `value` over the units, a power of two of them, to each unit. `shared` has one element for each.
#[cube]
pub(crate) fn sum_of_cube(shared: &mut [f32], value: f32, #[comptime] units: u32) -> f32 {
    let unit = UNIT_POS as usize;
    sync_cube();
    shared[unit] = value;
    sync_cube();
    let mut stride = (units / 2).runtime();
    while stride > 0 {
        if UNIT_POS < stride {
            let other = shared[unit + stride as usize];
            shared[unit] += other;
        }
        sync_cube();
        stride /= 2;
    }
    shared[0]
}

/// Returns the largest `value` of the units, a power of two of them, to each unit. `shared` has one element for each.
#[cube]
pub(crate) fn most_of_cube<N: Numeric>(shared: &mut [N], value: N, #[comptime] units: u32) -> N {
    let unit = UNIT_POS as usize;
    sync_cube();
    shared[unit] = value;
    sync_cube();
    let mut stride = (units / 2).runtime();
    while stride > 0 {
        if UNIT_POS < stride {
            let other = shared[unit + stride as usize];
            shared[unit] = max(shared[unit], other);
        }
        sync_cube();
        stride /= 2;
    }
    shared[0]
}
