//! A micro-batch, and a stream of samples that is cut into micro-batches.

use std::{ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{DataError, SampleError};

/// One micro-batch as host data: the input of a model's step.
///
/// A trainer uses the three counts to weight the batch's loss and to measure its throughput, without looking inside.
pub trait Batch: Send + 'static {
    /// The number of supervised items: labels that count in the loss.
    ///
    /// For a language model, these are the labels other than [`IGNORE`](crate::IGNORE) after the model has shifted them
    /// by one. The mean loss of several micro-batches is the sum of their losses, each weighted by its items.
    fn items(&self) -> usize;

    /// The number of samples; a packed row is one.
    fn samples(&self) -> usize;

    /// The number of records whose first sample is in the batch. It is below [`samples`](Self::samples) if a long record
    /// is cut into several. Default: each sample is a record.
    fn records(&self) -> usize {
        self.samples()
    }

    /// The number of real tokens, without padding. Used to measure throughput.
    fn tokens(&self) -> usize;

    /// The number of rows that a model reads. Default: one for each sample.
    fn row_count(&self) -> usize {
        self.samples()
    }

    /// The number of tokens of the source rows, padding included. Default: 0, without a source.
    fn source_tokens(&self) -> usize {
        0
    }

    /// Whether the last token of a row is only a label, which a model does not read. Default: no.
    fn last_is_label(&self) -> bool {
        false
    }

    /// Returns the samples about which the loss asks a reference model, if it does. A trainer asks it once for each
    /// sample, before the first update, and gives each batch the [answers](Self::answered). Default: it asks none.
    fn compared(&self) -> Option<Compared> {
        None
    }

    /// Takes the answers of the reference model: as many numbers for each [compared](Self::compared) sample, in order.
    fn answered(&mut self, numbers: Vec<f32>) {
        let _ = numbers;
    }
}

/// A stream of samples as a pure function from positions to batches.
///
/// An epoch is a fixed sequence of [`samples`](Self::samples) samples; [`batch`](Self::batch) returns those at a range
/// of positions. A trainer first cuts the global batch of a step as one range, and then deals parts of that range to
/// micro-batches, ranks and worker threads. The stream is therefore independent of the number of any of these, and two
/// numbers describe the training position: the epoch and the number of consumed samples, a [`Cursor`](crate::Cursor).
///
/// An `Arc` of a stream is a stream too, and so is `Arc<dyn Batches<Batch = MyBatch>>`.
///
/// # Example
///
/// ```
/// use std::ops::Range;
/// use firebrick_datasets::{Batches, DataError, SampleError, TokenBatch};
///
/// /// Rows of one token each: the position.
/// struct Counting;
///
/// impl Batches for Counting {
///     type Batch = TokenBatch;
///
///     fn samples(&self, _epoch: u64) -> usize {
///         10
///     }
///
///     fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<TokenBatch, DataError> {
///         if positions.end > 10 {
///             return Err(SampleError::OutOfRange { epoch, positions, samples: 10 }.into());
///         }
///         TokenBatch::from_rows(positions.map(|position| vec![position as u32]).collect(), 0)
///     }
/// }
///
/// assert_eq!(Counting.batch(0, 3..5)?.shape(), [2, 1]);
/// # Ok::<(), DataError>(())
/// ```
pub trait Batches: Send + Sync + 'static {
    /// The batch type that samples are collated into.
    type Batch: Batch;

    /// The number of samples in this epoch. It may differ from epoch to epoch.
    fn samples(&self, epoch: u64) -> usize;

    /// Collates the samples at `positions` of the epoch's order.
    ///
    /// Pure: the same arguments give the same batch, on any thread and in any sequence of calls.
    ///
    /// # Errors
    ///
    /// [`SampleError::OutOfRange`] if the epoch does not have these positions, and any error from reading the data.
    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<Self::Batch, DataError>;

    /// Returns the number of tokens, including padding, of the batch at `positions`. [Cutting by
    /// tokens](crate::Amount::Tokens) uses it to limit the size of a batch. It must not decrease when a position is
    /// added at the end.
    ///
    /// # Errors
    ///
    /// Those of [`batch`](Self::batch), and [`SampleError::NoTokenCounts`] if the data set does not implement it.
    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        let _ = (epoch, positions);
        Err(SampleError::NoTokenCounts.into())
    }
}

impl<T: Batches + ?Sized> Batches for Arc<T> {
    type Batch = T::Batch;

    fn samples(&self, epoch: u64) -> usize {
        (**self).samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<Self::Batch, DataError> {
        (**self).batch(epoch, positions)
    }

    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        (**self).padded_tokens(epoch, positions)
    }
}

/// The model that a loss compares the trained one with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Reference {
    /// The model that training starts from, with the adapters that it starts from.
    #[default]
    Frozen,
    /// The model without its adapters. With new adapters, this is also the one that training starts from.
    AdapterOff,
}

/// The samples of a batch about which its loss asks a reference model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// The model to ask.
    pub with: Reference,
    /// Each sample's id: a hash of its contents, the same wherever the sample stands.
    pub samples: Vec<u128>,
}

impl Compared {
    /// Returns what the answers about each sample are kept under: another reference gives other answers.
    ///
    /// ```
    /// use firebrick_datasets::{Compared, Reference};
    ///
    /// let keys = |with| Compared { with, samples: vec![3, 4] }.keys();
    /// assert_ne!(keys(Reference::Frozen), keys(Reference::AdapterOff));
    /// ```
    pub fn keys(&self) -> Vec<u128> {
        let key = |sample: &u128| match self.with {
            Reference::Frozen => *sample,
            Reference::AdapterOff => !sample,
        };
        self.samples.iter().map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TokenBatch, Windows};

    #[test]
    fn a_shared_trait_object_is_a_stream() {
        fn samples_of(batches: impl Batches<Batch = TokenBatch>) -> usize {
            batches.samples(0)
        }
        let windows = Windows::new(vec![1, 2, 3], 1).unwrap();
        let shared: Arc<dyn Batches<Batch = TokenBatch>> = Arc::new(windows);
        assert_eq!(shared.batch(0, 0..1).unwrap().shape(), [1, 2]);
        assert_eq!(samples_of(shared), 2);
    }
}
