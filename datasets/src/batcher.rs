//! Makes batches from a stream of samples.

use std::{ops::Range, sync::Arc};

use crate::{Batches, Collator, DataError, SampleError, Samples};

/// Makes batches from a stream of samples with a task's collator.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
/// use firebrick_datasets::{Batch, Batcher, Batches, Collator, DataError, Drawn, InMemory, Record, TokenBatch};
///
/// /// Collates rows of existing ids.
/// struct Ids;
///
/// impl Collator for Ids {
///     type Sample = Vec<u32>;
///     type Batch = TokenBatch;
///
///     fn encode(&self, record: &Record) -> Result<Vec<Vec<u32>>, DataError> {
///         Ok(vec![record.text("text")?.bytes().map(u32::from).collect()])
///     }
///
///     fn length(&self, sample: &Vec<u32>) -> usize {
///         sample.len()
///     }
///
///     fn padded(&self, samples: &[Arc<Vec<u32>>]) -> usize {
///         samples.len() * samples.iter().map(|sample| sample.len()).max().unwrap_or(0)
///     }
///
///     fn collate(&self, samples: &[Drawn<Vec<u32>>]) -> Result<TokenBatch, DataError> {
///         TokenBatch::from_rows(samples.iter().map(|drawn| drawn.sample.to_vec()).collect(), 0)
///     }
/// }
///
/// let samples = InMemory::new(vec![vec![5, 6], vec![7], vec![8, 9, 10]]).shuffled(42);
/// let batches = Batcher::new(samples, Ids);
/// assert_eq!(batches.batch(0, 0..3)?.shape(), [3, 3]);
/// # Ok::<(), DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Batcher<S, C> {
    samples: S,
    collator: C,
}

impl<S, C> Batcher<S, C>
where
    S: Samples,
    C: Collator<Sample = S::Sample>,
{
    /// Creates a batcher for these samples.
    pub fn new(samples: S, collator: C) -> Self {
        Self { samples, collator }
    }

    /// Returns the stream of samples.
    pub fn stream(&self) -> &S {
        &self.samples
    }

    /// Returns the collator.
    pub fn collator(&self) -> &C {
        &self.collator
    }

    fn check(&self, epoch: u64, positions: &Range<usize>) -> Result<(), DataError> {
        let samples = self.samples.samples(epoch);
        match positions.start > positions.end || positions.end > samples {
            true => Err(SampleError::OutOfRange { epoch, positions: positions.clone(), samples }.into()),
            false => Ok(()),
        }
    }
}

impl<S, C> Batches for Batcher<S, C>
where
    S: Samples,
    C: Collator<Sample = S::Sample>,
{
    type Batch = C::Batch;

    fn samples(&self, epoch: u64) -> usize {
        self.samples.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<C::Batch, DataError> {
        self.check(epoch, &positions)?;
        let drawn = positions.map(|position| self.samples.sample(epoch, position));
        let drawn = drawn.collect::<Result<Vec<_>, _>>()?;
        self.collator.collate(&drawn)
    }

    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        self.check(epoch, &positions)?;
        let samples = positions.map(|position| Ok(self.samples.sample(epoch, position)?.sample));
        Ok(self.collator.padded(&samples.collect::<Result<Vec<Arc<_>>, DataError>>()?))
    }
}
