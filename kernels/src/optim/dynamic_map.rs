//! Dynamic 8-bit numbers: their 256 values, and rounding to the nearest one.

use std::sync::LazyLock;

/// Decades that the values span.
const DECADES: u32 = 7;

/// Returns the 256 values of a dynamic 8-bit number in ascending order, from -1 to 1 or, unsigned, from 0
/// ([Dettmers, 2016](https://arxiv.org/abs/1511.04561)). They equal those of bitsandbytes' `create_dynamic_map`, except
/// for its rounding in f32.
///
/// In each decade from 1e-7 to 1 the values are evenly spaced, twice as many as in the decade below: large numbers have
/// a fine resolution, and small ones are still representable. 0 and 1 are among the values, and -1 is not.
///
/// ```
/// let map = firebrick_kernels::optim::dynamic_map(true);
/// assert_eq!((map[127], map[255]), (0.0, 1.0));
/// assert!((map[128] - 5.5e-7).abs() < 1e-9);
/// ```
pub fn dynamic_map(signed: bool) -> [f32; 256] {
    let mut values = vec![0.0, 1.0];
    for decade in 0..DECADES {
        let count = if signed { 1 << decade } else { 2 << decade };
        let size = 10f64.powi(decade as i32 + 1 - DECADES as i32);
        for at in 0..count {
            // The midpoints of `count` equal parts of 0.1 to 1.
            let value = (size * (0.1 + 0.9 * (f64::from(at) + 0.5) / f64::from(count))) as f32;
            values.push(value);
            if signed {
                values.push(-value);
            }
        }
    }
    values.sort_by(f32::total_cmp);
    let mut map = [0.0; 256];
    map.copy_from_slice(&values);
    map
}

/// The map of first moments, and the unsigned map of second moments.
pub(super) static SIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(true));
pub(super) static UNSIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(false));

/// The upper halves of the smallest and the largest f32 in the table: anything smaller is nearest to 0.
const FIRST: u32 = 0x3380; // 2^-24
const LAST: u32 = 0x3F80; // 1
const BUCKETS: usize = (LAST - FIRST + 1) as usize;

/// The values, and a table that finds their codes.
pub(super) struct DynamicMap {
    values: [f32; 256],
    /// The code of 0. Positive values are above it, their opposites below.
    zero: u8,
    /// For each upper half of a magnitude, the level of the nearest value above 0, or one less. A bucket never spans
    /// more than two values.
    low: [u8; BUCKETS],
    /// The magnitudes from which the next value is nearer.
    middles: [f32; 256],
}

impl DynamicMap {
    fn new(signed: bool) -> Self {
        let values = dynamic_map(signed);
        let zero = if signed { 127u8 } else { 0 };
        let levels = &values[usize::from(zero)..];
        let mut middles = [f32::INFINITY; 256];
        for (middle, pair) in middles.iter_mut().zip(levels.windows(2)) {
            *middle = (pair[0] + pair[1]) / 2.0;
        }
        let mut low = [0; BUCKETS];
        for (bucket, low) in low.iter_mut().enumerate().skip(1) {
            let least = f32::from_bits((FIRST + bucket as u32) << 16);
            *low = middles.iter().filter(|middle| **middle <= least).count() as u8;
        }
        Self { values, zero, low, middles }
    }

    #[inline(always)]
    pub fn value(&self, code: u8) -> f32 {
        self.values[usize::from(code)]
    }

    /// Returns the code of the value nearest to a number from -1 (0 if unsigned) to 1.
    #[inline(always)]
    pub fn code(&self, number: f32) -> u8 {
        let magnitude = number.abs();
        let bucket = (magnitude.to_bits() >> 16).clamp(FIRST, LAST) - FIRST;
        let low = self.low[bucket as usize];
        let level = low + u8::from(magnitude >= self.middles[usize::from(low)]);
        if number < 0.0 { self.zero.saturating_sub(level) } else { self.zero + level }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_its_own_code() {
        for map in [&*SIGNED, &*UNSIGNED] {
            for code in 0..=255 {
                assert_eq!(map.code(map.value(code)), code);
            }
        }
    }

    /// Tests every bit pattern of the upper half, with ends and middles of the lower half.
    #[test]
    fn the_code_is_of_the_nearest_value() {
        for (map, signs) in [(&*SIGNED, [1.0, -1.0]), (&*UNSIGNED, [1.0, 1.0])] {
            for upper in 0x3000u32..=0x3F80 {
                for lower in [0u32, 1, 0x5555, 0x8000, 0xFFFF] {
                    for sign in signs {
                        let number = sign * f32::from_bits(upper << 16 | lower).min(1.0);
                        let found = (map.value(map.code(number)) - number).abs();
                        let nearest = map.values.iter().map(|value| (value - number).abs());
                        let nearest = nearest.fold(f32::INFINITY, f32::min);
                        // The midpoint of two values is rounded too.
                        assert!(found <= nearest * (1.0 + 1e-4), "{number}: {found} {nearest}");
                    }
                }
            }
            assert_eq!(map.value(map.code(0.0)), 0.0);
            assert_eq!(map.value(map.code(-0.0)), 0.0);
        }
        assert_eq!(SIGNED.code(f32::NAN), 255);
    }
}
