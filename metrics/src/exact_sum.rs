//! A sum of fractions that does not depend on their order.

use crate::MetricError;
use crate::counts::{LARGEST, length};

/// The unit of the sum, 2^-64, as what a summand is multiplied by.
const UNITS: f64 = 18_446_744_073_709_551_616.0;
/// Summands from here on, and those that are not finite, are added as floats: 2^40.
const LARGE: f64 = 1_099_511_627_776.0;
/// Bits of a part of the sum. Sums of 2^21 parts of this size are exact in f64.
const PART_BITS: u32 = 32;

/// A sum in fixed point: each summand is rounded to a multiple of 2^-64, and then nothing is rounded.
///
/// Adding floats rounds at each step, so the sum of shards would differ from that of the whole in its
/// last bits. A summand from 2^40 on loses this property, which no loss and no score comes near.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ExactSum {
    /// In units of 2^-64.
    total: i128,
    /// What does not fit in there, with what is not finite.
    beyond: f64,
}

impl ExactSum {
    /// How many numbers it is exchanged as.
    pub const PARTS: usize = 5;

    pub fn add(&mut self, summand: f64) {
        // A product with a power of two is exact, so this rounds once.
        let units = (summand * UNITS).round();
        match self.total.checked_add(units as i128) {
            Some(total) if summand.abs() < LARGE => self.total = total,
            _ => self.beyond += summand,
        }
    }

    pub fn value(&self) -> f64 {
        self.total as f64 / UNITS + self.beyond
    }

    /// The lowest bits first; the highest part has the sign.
    pub fn parts(&self) -> [f64; Self::PARTS] {
        let part = |index: u32| (self.total >> (index * PART_BITS)) as u32 as f64;
        let highest = (self.total >> (3 * PART_BITS)) as f64;
        [part(0), part(1), part(2), highest, self.beyond]
    }

    /// A sum out of its parts, or out of the sums of parts.
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
    fn sums_that_floats_get_wrong() {
        assert_eq!(sum(&[0.1; 10]).value(), 1.0);
        assert_eq!(sum(&[1e9, 1e-9, -1e9]).value(), sum(&[1e-9]).value());
        assert_eq!(sum(&[-0.5, -0.25]).value(), -0.75);
    }

    #[test]
    fn what_is_not_finite_or_absurdly_large_is_kept() {
        assert_eq!(sum(&[1.0, f64::INFINITY]).value(), f64::INFINITY);
        assert!(sum(&[1.0, f64::NAN]).value().is_nan());
        assert_eq!(sum(&[1.0, 1e300, 2.0]).value(), 1e300);
        assert_eq!(sum(&[-1e300]).value(), -1e300);
    }

    #[test]
    fn parts_that_are_none() {
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
