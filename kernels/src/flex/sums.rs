//! Sums of f32 in vectors.
//!
//! A sum in sequence can't be vectorized. These keep one partial sum for each of a fixed number of lanes, so that the
//! order of additions, and with it every bit of the result, is the same on every processor.

use std::hint::black_box;

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
