//! Counts, parsed from the plain numbers that ranks exchange, and a sum of fractions that does not depend on the order.

use crate::MetricError;

/// The largest count: up to here f64 represents every whole number, and sums are exact.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// Parses exactly `expected` counts.
pub(crate) fn whole_numbers(
    metric: &'static str,
    counts: &[f64],
    expected: usize,
) -> Result<Vec<u64>, MetricError> {
    if counts.len() != expected {
        return Err(length(metric, counts, expected));
    }
    counts.iter().map(|&count| whole_number(metric, count)).collect()
}

/// Parses exactly `N` counts, for metrics whose settings do not change their number.
pub(crate) fn whole_array<const N: usize>(
    metric: &'static str,
    counts: &[f64],
) -> Result<[u64; N], MetricError> {
    let counts: &[f64; N] = counts.try_into().map_err(|_| length(metric, counts, N))?;
    let mut whole = [0; N];
    for (whole, &count) in whole.iter_mut().zip(counts) {
        *whole = whole_number(metric, count)?;
    }
    Ok(whole)
}

/// Returns the error for a wrong number of counts.
pub(crate) fn length(metric: &'static str, counts: &[f64], expected: usize) -> MetricError {
    MetricError::Counts {
        metric,
        expected: format!("{expected} numbers"),
        found: format!("{} numbers", counts.len()),
    }
}

fn whole_number(metric: &'static str, count: f64) -> Result<u64, MetricError> {
    if (0.0..=LARGEST).contains(&count) && count.fract() == 0.0 {
        return Ok(count as u64);
    }
    Err(MetricError::Counts {
        metric,
        expected: "whole numbers from 0 to 2^53".to_owned(),
        found: count.to_string(),
    })
}

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

    #[test]
    fn only_whole_numbers_are_counts() {
        assert_eq!(whole_array("m", &[0.0, LARGEST]), Ok([0, 1 << 53]));
        for wrong in [-1.0, 0.5, f64::NAN, f64::INFINITY, LARGEST * 2.0] {
            let error = whole_numbers("m", &[1.0, wrong], 2).unwrap_err();
            assert!(error.to_string().contains(&format!("found {wrong}")), "{error}");
        }
        assert!(
            whole_array::<2>("m", &[1.0]).unwrap_err().to_string().contains("expected 2 numbers, found 1")
        );
        assert!(whole_numbers("m", &[1.0; 3], 2).is_err());
    }

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
