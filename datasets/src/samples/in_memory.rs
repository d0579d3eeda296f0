//! Samples that are held in memory.

use std::{ops::Range, sync::Arc};

use super::{GroupedByLength, Samples, Shuffled};
use crate::{Amount, DataError, Drawn, SampleError};

/// Samples in memory, in their own order, which is the same in every epoch.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{InMemory, Samples};
///
/// let samples = InMemory::new(vec!["a", "b", "c"]);
/// assert_eq!(*samples.sample(0, 1)?.sample, "b");
///
/// let shuffled = samples.shuffled(42);
/// let order = |epoch| (0..3).map(|at| *shuffled.sample(epoch, at).unwrap().sample).collect::<String>();
/// assert_eq!(order(0), order(0));
/// assert_ne!(order(0), order(1));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug)]
pub struct InMemory<S> {
    samples: Arc<[Arc<S>]>,
}

impl<S> Clone for InMemory<S> {
    fn clone(&self) -> Self {
        Self { samples: Arc::clone(&self.samples) }
    }
}

impl<S: Send + Sync + 'static> InMemory<S> {
    /// Takes these samples.
    pub fn new(samples: Vec<S>) -> Self {
        Self { samples: samples.into_iter().map(Arc::new).collect() }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Iterates over the samples in their own order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<S>> {
        self.samples.iter()
    }

    /// Returns part of the samples, in their own order, without copying them.
    ///
    /// # Errors
    ///
    /// [`SampleError::OutOfRange`] if the positions reach beyond the end.
    pub fn part(&self, positions: Range<usize>) -> Result<Self, DataError> {
        match self.samples.get(positions.clone()) {
            Some(samples) => Ok(Self { samples: samples.iter().cloned().collect() }),
            None => Err(SampleError::OutOfRange { epoch: 0, positions, samples: self.len() }.into()),
        }
    }

    /// Shuffles the samples with the seed, in a different order in each epoch.
    pub fn shuffled(self, seed: u64) -> Shuffled<Self> {
        Shuffled::new(self, seed)
    }

    /// Groups samples of similar length into batches, in a different order in each epoch.
    ///
    /// See [`GroupedByLength`].
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if `batch` is 0.
    pub fn grouped_by_length(
        self,
        seed: u64,
        batch: Amount,
        length: impl Fn(&S) -> usize + Send + Sync + 'static,
    ) -> Result<GroupedByLength<Shuffled<Self>>, DataError> {
        GroupedByLength::new(self.shuffled(seed), seed, batch, length)
    }
}

impl<S: Send + Sync + 'static> Samples for InMemory<S> {
    type Sample = S;

    fn samples(&self, _epoch: u64) -> usize {
        self.len()
    }

    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<S>, DataError> {
        match self.samples.get(position) {
            Some(sample) => Ok(Drawn { epoch, index: position as u64, sample: Arc::clone(sample) }),
            None => Err(DataError::out_of_range(epoch, position, self.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let samples = InMemory::new(vec![1, 2, 3]);
        let part = samples.part(1..3).unwrap();
        assert_eq!(part.iter().map(|sample| **sample).collect::<Vec<_>>(), [2, 3]);
        assert!(samples.part(2..4).is_err());
        assert!(matches!(
            part.sample(7, 2).unwrap_err(),
            DataError::Sample(SampleError::OutOfRange {
                epoch: 7,
                positions: Range { start: 2, end: 3 },
                samples: 2
            })
        ));
    }
}
