//! Sums and maxima over the units of a cube.

use cubecl::prelude::*;

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
