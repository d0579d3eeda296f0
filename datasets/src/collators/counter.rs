//! Random numbers that are computed from where they are used.

use crate::samples::mix;

/// Random numbers as a pure function of a seed, an epoch, a sample and a position in it.
///
/// It is SplitMix64's finaliser over a counter (see the shuffle in `samples/order.rs`): whoever
/// asks, on whatever thread and in whatever batch, gets the same number. The numbers are part of
/// what a run can be reproduced from: they stay the same in every release.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter(u64);

/// Keeps these numbers apart from the keys of the shuffle, which come from the same seed.
const MASKING: u64 = 0x6D61_736B_696E_6731;

impl Counter {
    /// The numbers of one sample.
    pub(super) fn new(seed: u64, epoch: u64, index: u64) -> Self {
        let run = mix(seed ^ MASKING);
        Self(mix(mix(run.wrapping_add(epoch)).wrapping_add(index)))
    }

    /// The number at a position. Each `draw` of a position is a number of its own.
    fn bits(self, position: u64, draw: u64) -> u64 {
        mix(mix(self.0.wrapping_add(position)).wrapping_add(draw))
    }

    /// A number of [0, 1), of 53 bits.
    pub(super) fn uniform(self, position: u64, draw: u64) -> f64 {
        (self.bits(position, draw) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number below `end`; `None` if there is none.
    pub(super) fn below(self, end: u64, position: u64, draw: u64) -> Option<u64> {
        // The bias of a product that is cut off is at most end / 2⁶⁴.
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

    /// Sixteen buckets are equally full, whichever of the numbers is counted up.
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
            // 15 degrees of freedom: above 44.3 once in 10 000 times.
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
