//! Streams of samples and their order.

mod grouped_by_length;
mod in_memory;
mod mixed;
mod order;
mod packs;
mod source;
mod stream;
mod whole_records;
mod windows;

use std::sync::Arc;

pub use grouped_by_length::GroupedByLength;
pub use in_memory::InMemory;
pub use mixed::{Mixed, Until};
pub(crate) use order::mix;
pub use order::{Permutation, Shuffled};
pub use packs::Packs;
pub use source::{PartSamples, Source};
pub use stream::Stream;
pub use whole_records::WholeRecords;
pub use windows::Windows;

use crate::{DataError, Drawn};

/// A stream of samples as a pure function of epoch and position.
///
/// Streams are layers around a source: in memory, shuffled, grouped by length. A [`Batcher`](crate::Batcher) makes
/// batches of their samples.
pub trait Samples: Send + Sync + 'static {
    /// One sample.
    type Sample: Send + Sync + 'static;

    /// The number of samples in this epoch.
    fn samples(&self, epoch: u64) -> usize;

    /// Returns the sample at a position of the epoch's order.
    ///
    /// # Errors
    ///
    /// [`SampleError::OutOfRange`](crate::SampleError::OutOfRange) if the epoch has no such position, and any error
    /// from reading the sample.
    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<Self::Sample>, DataError>;
}

impl<T: Samples + ?Sized> Samples for Arc<T> {
    type Sample = T::Sample;

    fn samples(&self, epoch: u64) -> usize {
        (**self).samples(epoch)
    }

    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<Self::Sample>, DataError> {
        (**self).sample(epoch, position)
    }
}
