//! Elements as f32, and their sums in vectors.
//!
//! Conversions have no branches or calls, so that the compiler vectorizes a loop over them. A sum in sequence can't be
//! vectorized. These keep one partial sum for each of a fixed number of lanes, so that the order of additions, and with it
//! every bit of the result, is the same on every processor.

use std::hint::black_box;

use burn::backend::Element;
use burn::tensor::{bf16, f16};
use bytemuck::Pod;

/// A float of at most 32 bits.
pub(crate) trait Lane: Element + Pod + Send + Sync {
    /// Converts to f32, exactly.
    fn wide(self) -> f32;

    /// Rounds to the nearest, ties to even.
    fn narrow(x: f32) -> Self;
}

impl Lane for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

impl Lane for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Adds half of the last kept bit, minus one if that bit is even. NaN would become infinity or zero, so it is made
    /// a quiet NaN instead.
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        Self::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
}

impl Lane for f16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7FFF) << 13;
        let exponent = magnitude & (0x7C00 << 13);
        // The exponent's bias changes from 15 to 127.
        let normal = f32::from_bits(magnitude + (112 << 23));
        let infinite = f32::from_bits(magnitude + (224 << 23));
        // As a number with the smallest exponent, minus its leading one.
        let small = f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23);
        let found = if exponent == 0x7C00 << 13 { infinite } else { normal };
        let found = if exponent == 0 { small } else { found };
        f32::from_bits(found.to_bits() | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let sign = x.to_bits() & 0x8000_0000;
        let bits = x.to_bits() ^ sign;
        let magnitude = f32::from_bits(bits);
        let odd = (bits >> 13) & 1;
        let normal = bits.wrapping_sub(112 << 23).wrapping_add(0xFFF + odd) >> 13;
        // Adding a number whose last bit is worth the smallest f16 rounds to a multiple of that.
        let small = (magnitude + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let infinite = if magnitude.is_nan() { 0x7E00 } else { 0x7C00 };
        let found = if bits < 113 << 23 { small } else { normal };
        let found = if bits >= 143 << 23 { infinite } else { found };
        Self::from_bits((found | sign >> 16) as u16)
    }
}

/// Partial sums: two vectors of AVX-512, four of AVX.
const LANES: usize = 32;

/// Returns the sum of `of` over the corresponding elements of slices of one length.
#[inline(always)]
pub(crate) fn sum_of<T: Copy, const N: usize>(rows: [&[T]; N], of: impl Fn([T; N]) -> f32) -> f32 {
    let length = rows[0].len();
    // Blocks of a known size leave no bounds to check within them, which would keep the loop from being vectorized.
    let parts = rows.map(|row| row[..length].as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for block in 0..length / LANES {
        let blocks = parts.map(|(blocks, _)| &blocks[block]);
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += of(blocks.map(|block| block[lane]));
        }
    }
    for at in 0..length % LANES {
        lanes[at] += of(parts.map(|(_, rest)| rest[at]));
    }
    // Without this, the compiler keeps the partial sums of a simple `of` in one register each.
    let mut lanes = black_box(lanes);
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the sum of the elements.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    sum_of([x], |[x]| x)
}

/// Returns the inner product of two slices of one length.
#[inline(always)]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    sum_of([x, y], |[x, y]| x * y)
}
