//! Rounding on a device: one kernel finds the largest magnitude in parts, the other rounds.
#![allow(unsafe_code)] // Launches without checks of bounds: each unit checks its elements.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Fp8, INFINITE, MOST_SCALE, TOP};
use crate::cube::{UNITS, element, empty, grid, most_of_cube, together, units, written};

/// The most parts in which the largest magnitude is found: each is read by each cube that rounds.
const PARTS: usize = 512;

/// Finds the largest of the bits of the magnitudes of `x`, contiguous and not empty, in parts: `[parts]`, u32.
pub fn most(x: &CubeTensor) -> CubeTensor {
    let together = together(&[x], |together| x.meta.num_elements().is_multiple_of(together));
    let (units, count) = (units(x, UNITS as usize), x.meta.num_elements() / together);
    let parts = count.div_ceil(units as usize).min(PARTS);
    let found = empty(x, [parts], DType::U32);
    // SAFETY: the kernel reads within the count, and each cube of a part writes one number.
    unsafe {
        most_kernel::launch_unchecked(
            &x.client,
            grid(x, parts),
            CubeDim::new_1d(units),
            x.required_address_type(),
            together,
            x.clone().into_buffer_arg(),
            found.clone().into_buffer_arg(),
            count,
            parts,
            units,
            element(x),
        );
    }
    found
}

/// Rounds the numbers of `x`, contiguous and not empty.
pub fn rounded(x: CubeTensor, format: Fp8) -> CubeTensor {
    let most = most(&x);
    let found = written(&x);
    let together = together(&[&x, &found], |together| x.meta.num_elements().is_multiple_of(together));
    let (units, count) = (units(&x, UNITS as usize), x.meta.num_elements() / together);
    // A cube finds the scale before it rounds, so it rounds several times what its units can at once.
    let cubes = count.div_ceil(units as usize).min(PARTS);
    // SAFETY: the kernel reads and writes within the count, and reads the parts within theirs.
    unsafe {
        rounded_kernel::launch_unchecked(
            &x.client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(units),
            x.required_address_type(),
            together,
            x.clone().into_buffer_arg(),
            most.clone().into_buffer_arg(),
            found.clone().into_buffer_arg(),
            count,
            most.meta.num_elements(),
            cubes * units as usize,
            units,
            format.mantissa(),
            format.largest(),
            format.smallest(),
            element(&x),
        );
    }
    found
}

/// Returns the bits of the magnitude of a number, which are ordered as magnitudes are, with NaN above infinity.
#[cube]
fn magnitude(x: f32) -> u32 {
    u32::reinterpret(x) & 0x7fff_ffffu32
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn most_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    parts: &mut [u32],
    count: usize,
    all: usize,
    #[comptime] units: u32,
    #[define(F)] _dtype: ElemType,
) {
    let part = CUBE_POS;
    if part >= all {
        terminate!();
    }
    let mut most = 0u32;
    let mut at = part * units as usize + UNIT_POS as usize;
    while at < count {
        let values = Vector::<f32, N>::cast_from(x[at]);
        #[unroll]
        for i in 0..N::value() {
            most = max(most, magnitude(values.extract(i)));
        }
        at += all * units as usize;
    }
    let mut shared = Shared::<[u32]>::new_slice(units as usize);
    let most = most_of_cube::<u32>(&mut shared, most, units);
    if UNIT_POS == 0 {
        parts[part] = most;
    }
}

/// See `Rounding` of the host.
#[cube(launch_unchecked, address_type = "dynamic")]
fn rounded_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    parts: &[u32],
    found: &mut [Vector<F, N>],
    count: usize,
    all: usize,
    apart: usize,
    #[comptime] units: u32,
    #[comptime] mantissa: u32,
    #[comptime] largest: u32,
    #[comptime] smallest: u32,
    #[define(F)] _dtype: ElemType,
) {
    let mut most = 0u32;
    let mut part = UNIT_POS as usize;
    while part < all {
        most = max(most, parts[part]);
        part += units as usize;
    }
    let mut shared = Shared::<[u32]>::new_slice(units as usize);
    let most = most_of_cube::<u32>(&mut shared, most, units);
    let sound = most < INFINITE;
    let mut exponent = min(most, INFINITE - 1) >> 23u32;
    if (most & 0x7f_ffffu32) > TOP {
        exponent += 1;
    }
    let exponent = max(exponent, comptime!(largest + 127 - MOST_SCALE).runtime());
    let least = exponent - comptime!(largest + smallest).runtime();

    let mut at = ABSOLUTE_POS;
    while at < count {
        let values = Vector::<f32, N>::cast_from(x[at]);
        let mut rounded = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            let value = values.extract(i);
            let bits = magnitude(value);
            let step = max(bits >> 23u32, least) - mantissa.runtime();
            let steps = f32::reinterpret(bits) * f32::reinterpret((254u32 - step) << 23u32);
            let below = steps.floor();
            let rest = steps - below;
            let half = below * 0.5;
            // Half a step goes to the even neighbour.
            let up = rest > 0.5 || (rest == 0.5 && half != half.floor());
            let whole = select(up, below + 1.0, below);
            let magnitude = whole * f32::reinterpret(step << 23u32);
            let signed = select(value < 0.0, -magnitude, magnitude);
            rounded.insert(i, select(sound, signed, f32::reinterpret(0x7fc0_0000u32)));
        }
        found[at] = Vector::cast_from(rounded);
        at += apart;
    }
}
