//! Sums of f32 in vectors.
//!
//! A sum in sequence can't be vectorized. These keep one partial sum for each of a fixed number of lanes, so that the
//! order of additions, and with it every bit of the result, is the same on every processor.

/// Partial sums: two vectors of AVX-512, four of AVX.
const LANES: usize = 32;

/// Returns the sum of `of` at each index below `length`.
#[inline(always)]
pub(crate) fn sum_of(length: usize, of: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = length / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += of(at + lane);
        }
    }
    for at in whole..length {
        lanes[at - whole] += of(at);
    }
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
    sum_of(x.len(), |at| x[at])
}

/// Returns the inner product of two slices of one length.
#[inline(always)]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let y = &y[..x.len()];
    sum_of(x.len(), |at| x[at] * y[at])
}
