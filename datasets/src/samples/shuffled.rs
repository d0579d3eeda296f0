//! Shuffles samples in a different order in each epoch.

use super::{Permutation, Samples};
use crate::{DataError, Drawn};

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
    use super::*;
    use crate::InMemory;

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
