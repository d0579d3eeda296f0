//! Streams of samples, and the order in which they come.

mod order;
mod windows;

use std::sync::Arc;

pub use order::Permutation;
pub use windows::Windows;

use crate::{DataError, Drawn};

/// A stream of samples as a pure function of epoch and position.
///
/// Streams are layers around a source: in memory, shuffled, grouped by length.
/// What makes batches of them asks for samples by position.
pub trait Samples: Send + Sync + 'static {
    /// One sample.
    type Sample: Send + Sync + 'static;

    /// The number of samples in this epoch.
    fn samples(&self, epoch: u64) -> usize;

    /// The sample at a position of the epoch's order.
    ///
    /// # Errors
    ///
    /// [`DataError::OutOfRange`] if the epoch has no such position, and whatever reading it can run
    /// into.
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
