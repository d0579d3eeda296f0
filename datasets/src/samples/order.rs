//! The shuffle: a permutation that is computed, not stored, and samples in its order.

use super::Samples;
use crate::{DataError, Drawn};

/// Rounds of the Feistel network.
///
/// Four rounds make a pseudo-random permutation of a large domain (Luby and Rackoff, "How to construct pseudorandom
/// permutations from pseudorandom functions", 1988). Small domains need more; NIST SP 800-38G uses ten for them.
const ROUNDS: usize = 10;

/// A shuffle of `0..len` in constant memory: a bijection keyed by a seed and an epoch.
///
/// The item at a position is computed from the position alone, so a run can resume anywhere in an epoch, and any number
/// of threads can share one order.
///
/// It is a balanced Feistel network over the smallest power of four that holds `len`. A result outside `0..len` is fed
/// in again until it falls inside, which keeps the bijection and takes fewer than four passes on average (cycle
/// walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
///
/// Runs depend on this order to be reproducible, so it stays the same in every release.
///
/// # Example
///
/// ```
/// use firebrick_datasets::Permutation;
///
/// let order = Permutation::new(5, 42, 0);
/// let mut items: Vec<usize> = (0..5).map(|position| order.at(position)).collect();
/// items.sort();
/// assert_eq!(items, [0, 1, 2, 3, 4]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permutation {
    len: usize,
    /// Bits of one half of the network's domain.
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Creates the order of `len` items in one epoch of a run with this seed.
    pub fn new(len: usize, seed: u64, epoch: u64) -> Self {
        let bits = usize::BITS - len.saturating_sub(1).leading_zeros();
        // For a fixed seed this is a bijection of the epoch: no two epochs share their keys.
        let mut state = mix(mix(seed).wrapping_add(epoch));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN_GAMMA);
            mix(state)
        });
        Self { len, half_bits: bits.div_ceil(2), keys }
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the item at `position`.
    ///
    /// # Panics
    ///
    /// If `position` is not below [`len`](Self::len), as when indexing a slice.
    pub fn at(&self, position: usize) -> usize {
        assert!(position < self.len, "position {position} is out of range for a permutation of {}", self.len);
        let mut item = self.network(position as u64);
        while item >= self.len as u64 {
            item = self.network(item);
        }
        item as usize
    }

    /// The Feistel network: a bijection of the numbers of `2 * half_bits` bits.
    fn network(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            // Adds instead of the usual exclusive or, which makes only even permutations and so biases the orders of a
            // few items.
            (left, right) = (right, left.wrapping_add(mix(right ^ key)) & mask);
        }
        (left << self.half_bits) | right
    }
}

/// The increment of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): 2⁶⁴
/// divided by the golden ratio.
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64: a bijection in which each bit depends on all others.
pub(crate) fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Orders samples by a [`Permutation`] with a seed and the epoch.
///
/// It accesses the samples of the inner stream at random, so use it for streams with fast random access, such as
/// samples in memory. A [`Stream`](crate::Stream) has its own shuffle.
#[derive(Debug, Clone)]
pub struct Shuffled<S> {
    inner: S,
    seed: u64,
}

impl<S: Samples> Shuffled<S> {
    /// Shuffles a stream.
    pub fn new(inner: S, seed: u64) -> Self {
        Self { inner, seed }
    }
}

impl<S: Samples> Samples for Shuffled<S> {
    type Sample = S::Sample;

    fn samples(&self, epoch: u64) -> usize {
        self.inner.samples(epoch)
    }

    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<S::Sample>, DataError> {
        let samples = self.inner.samples(epoch);
        if position >= samples {
            return Err(DataError::out_of_range(epoch, position, samples));
        }
        self.inner.sample(epoch, Permutation::new(samples, self.seed, epoch).at(position))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::InMemory;

    fn items(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let order = Permutation::new(len, seed, epoch);
        (0..len).map(|position| order.at(position)).collect()
    }

    fn assert_bijection(len: usize, seed: u64, epoch: u64) {
        let mut items = items(len, seed, epoch);
        items.sort_unstable();
        assert!(items.into_iter().eq(0..len), "length {len}");
    }

    /// Returns the chi-square distance of the counts from equality, in standard deviations.
    fn deviation(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        let chi_square: f64 =
            counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        let freedom = (counts.len() - 1) as f64;
        (chi_square - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn pinned_order() {
        assert_eq!(items(10, 0, 0), [5, 4, 9, 2, 8, 6, 3, 0, 1, 7]);
        assert_eq!(items(10, 0, 1), [7, 0, 1, 4, 6, 8, 9, 3, 2, 5]);
        assert_eq!(items(10, 42, 0), [1, 6, 4, 5, 9, 7, 0, 3, 2, 8]);
        assert_eq!(Permutation::new(1_000_000_007, 1, 2).at(3), 794_051_760);
    }

    #[test]
    fn small_lengths() {
        for len in 0..=130 {
            assert_bijection(len, 7, len as u64);
        }
    }

    #[test]
    fn the_largest_length() {
        let order = Permutation::new(usize::MAX, 1, 2);
        assert_ne!(order.at(0), order.at(usize::MAX - 1));
    }

    #[test]
    #[should_panic(expected = "position 3 is out of range for a permutation of 3")]
    fn beyond_the_end() {
        Permutation::new(3, 0, 0).at(3);
    }

    /// Over many epochs, each possible order of a few items occurs equally often.
    #[test]
    fn all_orders_are_equally_likely() {
        for (len, orders) in [(2, 2), (3, 6), (4, 24), (5, 120)] {
            let mut counts = BTreeMap::<_, u32>::new();
            for epoch in 0..60_000 {
                *counts.entry(items(len, 3, epoch)).or_default() += 1;
            }
            let counts: Vec<u32> = counts.into_values().collect();
            assert_eq!(counts.len(), orders);
            assert!(deviation(&counts) < 4.0, "orders of {len}: {counts:?}");
        }
    }

    /// Over many epochs, item 0 lands at each position, and each distance from an item to the next occurs, equally
    /// often.
    #[test]
    fn every_item_reaches_every_position() {
        for len in [7, 8, 13, 16, 30, 64, 100] {
            let mut places = vec![0; len];
            let mut steps = vec![0; len - 1];
            for epoch in 0..10_000 {
                let items = items(len, 3, epoch);
                places[items.iter().position(|&item| item == 0).unwrap()] += 1;
                for pair in items.windows(2) {
                    steps[(pair[1] + len - pair[0]) % len - 1] += 1;
                }
            }
            assert!(deviation(&places) < 4.0, "places of 0 in {len}: {places:?}");
            assert!(deviation(&steps) < 4.0, "successors in {len}: {steps:?}");
        }
    }

    proptest! {
        #[test]
        fn bijection(len in 0_usize..5000, seed: u64, epoch: u64) {
            assert_bijection(len, seed, epoch);
        }

        #[test]
        fn seeds_and_epochs_differ(len in 30_usize..200, seed: u64, epoch in 0_u64..1000) {
            prop_assert_ne!(items(len, seed, epoch), items(len, seed, epoch + 1));
            prop_assert_ne!(items(len, seed, epoch), items(len, seed.wrapping_add(1), epoch));
        }
    }

    #[test]
    fn each_sample_once_and_by_its_own_index() {
        let shuffled = InMemory::new((0..100).collect()).shuffled(3);
        for epoch in 0..3 {
            let drawn = (0..100).map(|position| shuffled.sample(epoch, position).unwrap());
            let mut seen: Vec<usize> = drawn
                .map(|drawn| {
                    assert_eq!((drawn.epoch, drawn.index), (epoch, *drawn.sample as u64));
                    *drawn.sample
                })
                .collect();
            assert!(!seen.is_sorted());
            seen.sort();
            assert!(seen.into_iter().eq(0..100));
        }
        assert!(shuffled.sample(0, 100).is_err());
    }
}
