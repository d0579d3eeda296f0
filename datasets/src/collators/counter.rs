//! Counter-based random numbers.

use crate::samples::mix;

/// Random numbers as a pure function of a seed, an epoch, a sample and a position in it.
///
/// It applies SplitMix64's finaliser to a counter (see the shuffle in `samples/order.rs`): every thread and every batch
/// gets the same number. Runs depend on these numbers to be reproducible, so they stay the same in every release.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter(u64);

/// Separates these numbers from the keys of the shuffle, which use the same seed.
const MASKING: u64 = 0x6D61_736B_696E_6731;

impl Counter {
    /// Creates the numbers of one sample.
    pub(super) fn new(seed: u64, epoch: u64, index: u64) -> Self {
        let run = mix(seed ^ MASKING);
        Self(mix(mix(run.wrapping_add(epoch)).wrapping_add(index)))
    }

    /// Returns the number at a position. Each `draw` of a position is an independent number.
    fn bits(self, position: u64, draw: u64) -> u64 {
        mix(mix(self.0.wrapping_add(position)).wrapping_add(draw))
    }

    /// Returns a number in [0, 1) with 53 random bits.
    pub(super) fn uniform(self, position: u64, draw: u64) -> f64 {
        (self.bits(position, draw) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a whole number below `end`, or `None` if `end` is 0.
    pub(super) fn below(self, end: u64, position: u64, draw: u64) -> Option<u64> {
        // Truncating the product has a bias of at most end / 2⁶⁴.
        let product = u128::from(self.bits(position, draw)) * u128::from(end);
        (end > 0).then_some((product >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_argument_matters() {
        let counter = Counter::new(1, 2, 3);
        assert_eq!(counter.bits(4, 5), Counter::new(1, 2, 3).bits(4, 5));
        let neighbours = [
            Counter::new(0, 2, 3).bits(4, 5),
            Counter::new(1, 3, 3).bits(4, 5),
            Counter::new(1, 2, 4).bits(4, 5),
            counter.bits(5, 5),
            counter.bits(4, 6),
        ];
        assert!(!neighbours.contains(&counter.bits(4, 5)));
    }

    /// Numbers fill sixteen buckets equally, whichever argument is counted up.
    #[test]
    fn uniform_in_every_direction() {
        type At = fn(u64) -> f64;
        let directions: [At; 5] = [
            |n| Counter::new(n, 0, 0).uniform(0, 0),
            |n| Counter::new(0, n, 0).uniform(0, 0),
            |n| Counter::new(0, 0, n).uniform(0, 0),
            |n| Counter::new(0, 0, 0).uniform(n, 0),
            |n| Counter::new(0, 0, 0).uniform(0, n),
        ];
        for (direction, at) in directions.into_iter().enumerate() {
            let mut counts = [0_i32; 16];
            for n in 0..160_000 {
                counts[(at(n) * 16.0) as usize] += 1;
            }
            let chi_square: f64 = counts.iter().map(|&count| f64::from(count - 10_000).powi(2) / 1e4).sum();
            // With 15 degrees of freedom, chi-square exceeds 44.3 once in 10 000 times.
            assert!(chi_square < 44.3, "direction {direction}: {chi_square}");
        }
    }

    #[test]
    fn below_an_end() {
        let counter = Counter::new(0, 0, 0);
        assert_eq!(counter.below(0, 0, 0), None);
        assert_eq!(counter.below(1, 0, 0), Some(0));
        let mut seen = [false; 5];
        for position in 0..100 {
            seen[counter.below(5, position, 0).unwrap() as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
