//! Parses counts from the plain numbers that ranks exchange.

use crate::MetricError;

/// The largest count: up to here f64 represents every whole number, and sums are exact.
pub(crate) const LARGEST: f64 = 9_007_199_254_740_992.0;

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

#[cfg(test)]
mod tests {
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
}
