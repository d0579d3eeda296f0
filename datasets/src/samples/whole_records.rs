//! Batches of whole records, for evaluation.

use std::{ops::Range, sync::Arc};

use super::{InMemory, Samples};
use crate::{Batches, Collator, DataError, SampleError};

/// Makes batches of records with all of their samples, in the data's own order.
///
/// With a stride, a long record is several samples. Scores are about records: they have to see all samples of a record
/// at once, so a position is a record here.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
/// use firebrick_datasets::{Batch, Batches, Collator, DataError, Drawn, InMemory, Record, TokenBatch, WholeRecords};
///
/// /// Rows of ids; a row that starts with 0 is the first of its record.
/// struct Ids;
///
/// impl Collator for Ids {
///     type Sample = Vec<u32>;
///     type Batch = TokenBatch;
/// #   fn encode(&self, _: &Record) -> Result<Vec<Vec<u32>>, DataError> { Ok(vec![]) }
/// #   fn length(&self, sample: &Vec<u32>) -> usize { sample.len() }
/// #   fn padded(&self, samples: &[Arc<Vec<u32>>]) -> usize { samples.len() * 2 }
///
///     fn collate(&self, samples: &[Drawn<Vec<u32>>]) -> Result<TokenBatch, DataError> {
///         TokenBatch::from_rows(samples.iter().map(|drawn| drawn.sample.to_vec()).collect(), 0)
///     }
///
///     fn begins_record(&self, sample: &Vec<u32>) -> bool {
///         sample[0] == 0
///     }
/// }
///
/// let samples = InMemory::new(vec![vec![0, 5], vec![1, 6], vec![0, 7]]);
/// let records = WholeRecords::new(samples, Arc::new(Ids));
/// assert_eq!(records.samples(0), 2);
/// assert_eq!(records.batch(0, 0..1)?.host_ids(), [0, 5, 1, 6]);
/// assert_eq!(records.batch(0, 1..2)?.host_ids(), [0, 7]);
/// # Ok::<(), DataError>(())
/// ```
#[derive(Debug)]
pub struct WholeRecords<C: Collator> {
    samples: InMemory<C::Sample>,
    collator: Arc<C>,
    /// The first sample of each record, and the end of the last one.
    starts: Vec<usize>,
}

impl<C: Collator> WholeRecords<C> {
    /// Takes the samples of records, in order.
    pub fn new(samples: InMemory<C::Sample>, collator: Arc<C>) -> Self {
        let begins = |(at, sample): (usize, &Arc<C::Sample>)| at == 0 || collator.begins_record(sample);
        let starts = samples.iter().enumerate().filter(|&each| begins(each)).map(|(at, _)| at);
        let starts = starts.chain([samples.len()]).collect();
        Self { samples, collator, starts }
    }

    /// Keeps only the first records.
    pub fn first(mut self, records: usize) -> Self {
        self.starts.truncate(records.saturating_add(1));
        self
    }

    /// Returns the samples of these records.
    fn of(&self, positions: &Range<usize>) -> Result<Range<usize>, DataError> {
        match (self.starts.get(positions.start), self.starts.get(positions.end)) {
            (Some(&start), Some(&end)) if start <= end => Ok(start..end),
            _ => {
                let samples = self.starts.len() - 1;
                Err(SampleError::OutOfRange { epoch: 0, positions: positions.clone(), samples }.into())
            }
        }
    }
}

impl<C: Collator> Batches for WholeRecords<C> {
    type Batch = C::Batch;

    fn samples(&self, _epoch: u64) -> usize {
        self.starts.len() - 1
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<C::Batch, DataError> {
        let drawn = self.of(&positions)?.map(|sample| self.samples.sample(epoch, sample));
        self.collator.collate(&drawn.collect::<Result<Vec<_>, _>>()?)
    }

    /// A single record counts as its largest sample: a model evaluates at most as many rows at once as there are records.
    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        let samples = self.of(&positions)?.map(|sample| Ok(self.samples.sample(epoch, sample)?.sample));
        let samples = samples.collect::<Result<Vec<_>, DataError>>()?;
        match positions.len() {
            1 => Ok(samples.chunks(1).map(|sample| self.collator.padded(sample)).max().unwrap_or(0)),
            _ => Ok(self.collator.padded(&samples)),
        }
    }
}
