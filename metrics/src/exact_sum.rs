//! A sum of fractions that does not depend on the order.

use crate::MetricError;
use crate::counts::{LARGEST, length, whole_array};

/// The number of units in 1: the unit of the sum is 2^-64.
const UNITS: f64 = 18_446_744_073_709_551_616.0;
/// The limit, 2^40, from which on summands are added as floats, like non-finite ones.
const LARGE: f64 = 1_099_511_627_776.0;
/// Bits per part of the sum. f64 can sum 2^21 such parts exactly.
const PART_BITS: u32 = 32;

/// A sum in fixed point: each summand is rounded to a multiple of 2^-64, and nothing else is rounded.
///
/// Adding floats rounds at each step, so a sum over shards would differ from a sum over the whole in its
/// last bits. Summands from 2^40 on lose this property, but no loss or score comes near that.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ExactSum {
    /// The sum in units of 2^-64.
    total: i128,
    /// The sum of summands that are too large or not finite.
    beyond: f64,
}

impl ExactSum {
    /// The number of values that represent the sum.
    pub const PARTS: usize = 5;

    pub fn add(&mut self, summand: f64) {
        // Multiplying by a power of two is exact, so this rounds once.
        let units = (summand * UNITS).round();
        match self.total.checked_add(units as i128) {
            Some(total) if summand.abs() < LARGE => self.total = total,
            _ => self.beyond += summand,
        }
    }

    pub fn value(&self) -> f64 {
        self.total as f64 / UNITS + self.beyond
    }

    /// Splits the sum into parts, lowest bits first; the highest part carries the sign.
    pub fn parts(&self) -> [f64; Self::PARTS] {
        let part = |index: u32| (self.total >> (index * PART_BITS)) as u32 as f64;
        let highest = (self.total >> (3 * PART_BITS)) as f64;
        [part(0), part(1), part(2), highest, self.beyond]
    }

    /// Restores a sum from its parts, or from sums of parts.
    pub fn from_parts(metric: &'static str, parts: &[f64]) -> Result<Self, MetricError> {
        let parts: &[f64; Self::PARTS] = parts.try_into().map_err(|_| length(metric, parts, Self::PARTS))?;
        let [limbs @ .., beyond] = parts;
        let mut total = Some(0_i128);
        for &limb in limbs.iter().rev() {
            let whole = limb.fract() == 0.0 && limb.abs() <= LARGEST;
            let limb = whole.then_some(limb as i128);
            total = total.and_then(|total| total.checked_mul(1 << PART_BITS)?.checked_add(limb?));
        }
        let total = total.ok_or_else(|| MetricError::Counts {
            metric,
            expected: "the parts of a sum, whole numbers".to_owned(),
            found: format!("{limbs:?}"),
        })?;
        Ok(Self { total, beyond: *beyond })
    }
}

/// Parses `N` counts and the parts of `S` sums behind them.
pub(crate) fn counts_and_sums<const N: usize, const S: usize>(
    metric: &'static str,
    counts: &[f64],
) -> Result<([u64; N], [ExactSum; S]), MetricError> {
    let expected = N + S * ExactSum::PARTS;
    if counts.len() != expected {
        return Err(length(metric, counts, expected));
    }
    let (whole, parts) = counts.split_at(N);
    let mut sums = [ExactSum::default(); S];
    for (sum, parts) in sums.iter_mut().zip(parts.chunks_exact(ExactSum::PARTS)) {
        *sum = ExactSum::from_parts(metric, parts)?;
    }
    Ok((whole_array(metric, whole)?, sums))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(summands: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        summands.iter().for_each(|&summand| sum.add(summand));
        sum
    }

    #[test]
    fn sums_that_floats_would_round() {
        assert_eq!(sum(&[0.1; 10]).value(), 1.0);
        assert_eq!(sum(&[1e9, 1e-9, -1e9]).value(), sum(&[1e-9]).value());
        assert_eq!(sum(&[-0.5, -0.25]).value(), -0.75);
    }

    #[test]
    fn non_finite_and_huge_summands_are_kept() {
        assert_eq!(sum(&[1.0, f64::INFINITY]).value(), f64::INFINITY);
        assert!(sum(&[1.0, f64::NAN]).value().is_nan());
        assert_eq!(sum(&[1.0, 1e300, 2.0]).value(), 1e300);
        assert_eq!(sum(&[-1e300]).value(), -1e300);
    }

    #[test]
    fn invalid_parts() {
        for parts in [&[0.0; 4][..], &[0.5, 0.0, 0.0, 0.0, 0.0], &[f64::NAN, 0.0, 0.0, 0.0, 0.0]] {
            assert!(ExactSum::from_parts("m", parts).is_err(), "{parts:?}");
        }
        assert!(ExactSum::from_parts("m", &[0.0, 0.0, 0.0, 1e18, 0.0]).is_err());
    }

    proptest! {
        #[test]
        fn parts_of_shards_add_up_to_the_whole(
            summands in proptest::collection::vec(-1e6..1e6_f64, 0..40),
            cut in 0..40_usize,
        ) {
            let (first, second) = summands.split_at(cut.min(summands.len()));
            let whole = sum(&summands);
            prop_assert_eq!(ExactSum::from_parts("m", &whole.parts()).unwrap(), whole);
            let added: Vec<f64> =
                sum(first).parts().iter().zip(sum(second).parts()).map(|(a, b)| a + b).collect();
            prop_assert_eq!(ExactSum::from_parts("m", &added).unwrap(), whole);
            let naive: f64 = summands.iter().sum();
            prop_assert!((whole.value() - naive).abs() < 1e-6);
        }
    }
}
