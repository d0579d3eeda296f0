//! Samples into batches, one file for each task.

mod token_batch;

use std::sync::Arc;

pub use token_batch::{IGNORE, TokenBatch};

use crate::{Batch, DataError, Record};

/// What a task makes of records: samples, and batches of samples.
///
/// Both are pure functions. [`encode`](Self::encode) is called once for each record where the data
/// is in memory, [`collate`](Self::collate) once for each batch.
pub trait Collator: Send + Sync + 'static {
    /// A record, tokenized.
    type Sample: Send + Sync + 'static;
    /// Samples, padded.
    type Batch: Batch;

    /// The samples of one record: usually one; several if a long text is cut with a stride; none if
    /// nothing of it can be learned from.
    ///
    /// # Errors
    ///
    /// [`DataError::Record`] if a field is missing or of another type, and whatever the tokenizer
    /// can run into.
    fn encode(&self, record: &Record) -> Result<Vec<Self::Sample>, DataError>;

    /// The tokens of a sample before padding, by which samples are grouped.
    fn length(&self, sample: &Self::Sample) -> usize;

    /// The tokens of a batch of these samples after padding, by which batches are bounded. It
    /// does not fall when a sample is added.
    fn padded(&self, samples: &[Arc<Self::Sample>]) -> usize;

    /// Pads the samples to a batch, one row for each, in order. There may be none.
    ///
    /// # Errors
    ///
    /// Whatever cannot be put into a tensor.
    fn collate(&self, samples: &[Drawn<Self::Sample>]) -> Result<Self::Batch, DataError>;
}

/// A sample, drawn from a stream in some epoch. What is random about it is seeded by both numbers.
#[derive(Debug)]
pub struct Drawn<S> {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Which sample of the data it is, whatever its position in the epoch.
    pub index: u64,
    /// The sample.
    pub sample: Arc<S>,
}
