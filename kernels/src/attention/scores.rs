//! Passes over a tile of scores, `[keys, queries]`, in vectors of queries.
//!
//! Scores are in base 2: they are multiplied by log2(e), so that a weight is 2 to the power of a difference.

use std::f32::consts::LN_2;

use pulp::Simd;

use super::drops::DroppedKeys;
use crate::cap::capped;

/// The queries of a block: which keys each reads, as bounds in the key axis.
pub struct Bounds<'a> {
    /// The first key that each query reads.
    pub from: &'a [f32],
    /// The key after the last that each query reads.
    pub to: &'a [f32],
}

/// Returns 2 to the power of `x`, to 2e-7 of its value, for `x` below 127: 2ⁿ times Cephes' polynomial of the remainder.
/// Returns 0 below -126, and NaN for NaN.
#[inline(always)]
fn exp2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // Adding this removes the fraction of a number: its whole part is then in the lowest bits.
    const ROUNDS: f32 = 12_582_912.0;
    let rounded = simd.add_f32s(x, simd.splat_f32s(ROUNDS));
    let rest = simd.sub_f32s(x, simd.sub_f32s(rounded, simd.splat_f32s(ROUNDS)));
    let mut series = simd.splat_f32s(1.535_336_2e-4);
    for next in [1.339_887_4e-3, 9.618_437e-3, 5.550_332_6e-2, 0.240_226_48, LN_2, 1.0] {
        series = simd.mul_add_e_f32s(series, rest, simd.splat_f32s(next));
    }
    let whole = simd.sub_u32s(simd.transmute_u32s_f32s(rounded), simd.splat_u32s(ROUNDS.to_bits() - 127));
    let power = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(whole, simd.splat_u32s(23)));
    let least = simd.less_than_f32s(x, simd.splat_f32s(-126.0));
    simd.select_f32s(least, simd.splat_f32s(0.0), simd.mul_f32s(series, power))
}

/// Bounds the scores of a tile, if they are capped.
#[inline(always)]
pub fn limit(tile: Tile, scores: &mut [f32]) {
    let Some(cap) = tile.cap else { return };
    for score in &mut scores[..tile.keys * tile.queries] {
        *score = capped(*score, cap);
    }
}

/// Returns `x` where the query reads the key, and `otherwise` elsewhere.
#[inline(always)]
fn read<S: Simd>(simd: S, [from, to]: [S::f32s; 2], key: f32, x: S::f32s, otherwise: S::f32s) -> S::f32s {
    let key = simd.splat_f32s(key);
    let x = simd.select_f32s(simd.less_than_or_equal_f32s(from, key), x, otherwise);
    simd.select_f32s(simd.less_than_f32s(key, to), x, otherwise)
}

/// A tile: its first key, its numbers of keys and queries, and what is masked in it.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub first: usize,
    pub keys: usize,
    pub queries: usize,
    /// The bound of the scores.
    pub cap: Option<f32>,
    /// `None` if every query reads every key of the tile.
    pub bounds: Option<&'a Bounds<'a>>,
    pub dropped: Option<&'a DroppedKeys>,
}

impl Tile<'_> {
    #[inline(always)]
    fn bounds_at<S: Simd>(&self, at: usize) -> Option<[S::f32s; 2]> {
        self.bounds.map(|bounds| [bounds.from, bounds.to].map(|bound| S::as_simd_f32s(bound).0[at]))
    }
}

/// What a block of queries has summed so far.
pub struct Running<'a> {
    /// The greatest score of each query.
    pub most: &'a mut [f32],
    /// The sum of each query's weights relative to its greatest score.
    pub sums: &'a mut [f32],
    /// The factor by which the last tile changed what was summed before it.
    pub factors: &'a mut [f32],
}

/// Replaces scores by weights relative to each query's greatest score so far (Milakov & Gimelshein, 2018,
/// arXiv:1805.02867).
#[inline(always)]
pub fn weigh<S: Simd>(simd: S, tile: Tile, scores: &mut [f32], running: Running) {
    let (scores, _) = S::as_mut_simd_f32s(&mut scores[..tile.keys * tile.queries]);
    let (most, _) = S::as_mut_simd_f32s(running.most);
    let (sums, _) = S::as_mut_simd_f32s(running.sums);
    let (factors, _) = S::as_mut_simd_f32s(running.factors);
    let lowest = simd.splat_f32s(f32::NEG_INFINITY);
    let vectors = tile.queries / S::F32_LANES;
    for at in 0..vectors {
        let mut greatest = most[at];
        match tile.bounds_at::<S>(at) {
            None => {
                for score in scores[at..].iter().step_by(vectors) {
                    greatest = simd.max_f32s(greatest, *score);
                }
            }
            Some(bounds) => {
                for (key, score) in scores[at..].iter_mut().step_by(vectors).enumerate() {
                    *score = read(simd, bounds, (tile.first + key) as f32, *score, lowest);
                    greatest = simd.max_f32s(greatest, *score);
                }
            }
        }
        // The difference of two infinities is NaN: a query that has read nothing yet is relative to 0.
        let nothing = simd.equal_f32s(greatest, lowest);
        let base = simd.select_f32s(nothing, simd.splat_f32s(0.0), greatest);
        let mut sum = simd.splat_f32s(0.0);
        for score in scores[at..].iter_mut().step_by(vectors) {
            *score = exp2(simd, simd.sub_f32s(*score, base));
            sum = simd.add_f32s(sum, *score);
        }
        factors[at] = exp2(simd, simd.sub_f32s(most[at], base));
        sums[at] = simd.mul_add_e_f32s(sums[at], factors[at], sum);
        most[at] = greatest;
    }
    if let Some(dropped) = tile.dropped {
        for (key, scores) in scores.chunks_exact_mut(vectors).enumerate() {
            for (at, weight) in scores.iter_mut().enumerate() {
                let factor = dropped.factor(simd, at, tile.first + key);
                let zero = simd.splat_f32s(0.0);
                // Fill instead of multiply: a dropped infinity becomes 0 too.
                let is_dropped = simd.equal_f32s(factor, zero);
                *weight = simd.select_f32s(is_dropped, zero, simd.mul_f32s(*weight, factor));
            }
        }
    }
}

/// Multiplies each row of `sums`, `[.., queries]`, by `factors`.
#[inline(always)]
pub fn rescale<S: Simd>(simd: S, sums: &mut [f32], factors: &[f32]) {
    let (factors, _) = S::as_simd_f32s(factors);
    for sums in S::as_mut_simd_f32s(sums).0.chunks_exact_mut(factors.len()) {
        for (sum, factor) in sums.iter_mut().zip(factors) {
            *sum = simd.mul_f32s(*sum, *factor);
        }
    }
}

/// What the gradient of a block knows of each query.
#[derive(Clone, Copy)]
pub struct QueryTerms<'a> {
    /// The logarithm of the sum of 2 to the power of each score.
    pub logs: &'a [f32],
    /// The product of the output with its gradient.
    pub inner: &'a [f32],
}

/// Replaces scores by the weights that multiplied the values, and gradients of these weights by those of the scores
/// before they were [limited](limit).
#[inline(always)]
pub fn slope<S: Simd>(simd: S, tile: Tile, scores: &mut [f32], slopes: &mut [f32], known: QueryTerms) {
    let vectors = tile.queries / S::F32_LANES;
    let (scores, _) = S::as_mut_simd_f32s(&mut scores[..tile.keys * tile.queries]);
    let (slopes, _) = S::as_mut_simd_f32s(&mut slopes[..tile.keys * tile.queries]);
    let (logs, _) = S::as_simd_f32s(&known.logs[..tile.queries]);
    let (inner, _) = S::as_simd_f32s(&known.inner[..tile.queries]);
    let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
    let share = tile.cap.map(|cap| simd.splat_f32s(1.0 / cap));
    let rows = scores.chunks_exact_mut(vectors).zip(slopes.chunks_exact_mut(vectors));
    for (key, (scores, slopes)) in rows.enumerate() {
        let key = tile.first + key;
        for (at, (score, slope)) in scores.iter_mut().zip(slopes).enumerate() {
            let of_cap = share.map(|share| simd.mul_f32s(*score, share));
            let mut weight = exp2(simd, simd.sub_f32s(*score, logs[at]));
            let bounds = tile.bounds_at::<S>(at);
            if let Some(bounds) = bounds {
                weight = read(simd, bounds, key as f32, weight, zero);
            }
            *score = weight;
            let mut of_weight = *slope;
            if let Some(dropped) = tile.dropped {
                let factor = dropped.factor(simd, at, key);
                let is_dropped = simd.equal_f32s(factor, zero);
                *score = simd.select_f32s(is_dropped, zero, simd.mul_f32s(weight, factor));
                of_weight = simd.select_f32s(is_dropped, zero, simd.mul_f32s(of_weight, factor));
            }
            *slope = simd.mul_f32s(weight, simd.sub_f32s(of_weight, inner[at]));
            if let Some(tanh) = of_cap {
                *slope = simd.mul_f32s(*slope, simd.sub_f32s(one, simd.mul_f32s(tanh, tanh)));
            }
            if let Some(bounds) = bounds {
                *slope = read(simd, bounds, key as f32, *slope, zero);
            }
        }
    }
}
