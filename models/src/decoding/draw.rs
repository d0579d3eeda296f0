//! Drawing a token from a distribution, and the random numbers of each row.

use rand::{SeedableRng, rngs::ChaCha8Rng};

/// The random numbers of text `copy` of a row, independent of all other rows.
pub(super) fn generator(seed: u64, row: u64, copy: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, number) in key.chunks_exact_mut(8).zip([seed, row, copy]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// The token whose share of the cumulative distribution contains `point`, in `0.0..1.0`; `None` if no token is
/// possible.
pub(super) fn draw(probabilities: &[f64], point: f64) -> Option<u32> {
    let possible = || (0u32..).zip(probabilities).filter(|(_, probability)| **probability > 0.0);
    let mut rest = point * probabilities.iter().sum::<f64>();
    let found = possible().find(|(_, probability)| {
        rest -= **probability;
        rest < 0.0
    });
    // Rounding may leave the last share slightly short.
    found.or_else(|| possible().last()).map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::RngExt;

    use super::*;

    #[test]
    fn a_draw_follows_the_distribution() {
        let mut counts = [0; 4];
        for point in (0..400).map(|i| (f64::from(i) + 0.5) / 400.0) {
            counts[draw(&[0.25, 0.5, 0.0, 0.25], point).unwrap() as usize] += 1;
        }
        assert_eq!(counts, [100, 200, 0, 100]);
    }

    #[test]
    fn impossible_tokens_are_never_drawn() {
        for point in [0.0, 0.5, 1.0 - f64::EPSILON / 2.0, 1.0] {
            assert_eq!(draw(&[0.0, 1.0, 0.0], point), Some(1));
        }
        assert_eq!(draw(&[0.0; 3], 0.5), None);
        assert_eq!(draw(&[], 0.5), None);
    }

    #[test]
    fn seed_row_and_copy_each_change_the_numbers() {
        let key = |i: u64| (i % 3, i / 3 % 3, i / 9);
        let first = |(seed, row, copy)| generator(seed, row, copy).random::<u64>();
        assert_eq!((0..27).map(|i| first(key(i))).collect::<BTreeSet<_>>().len(), 27);
        assert_eq!(first((1, 2, 0)), first((1, 2, 0)));
    }
}
