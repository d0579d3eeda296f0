//! A batch without its type.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use firebrick_datasets::{Batch, Batches, Compared, DataError};

/// Any batch, behind a pointer: [`Data::erased`](crate::Data::erased) makes a stream of them. An
/// [`AnyModel`](crate::AnyModel) takes it in place of a batch of its own type.
pub struct AnyBatch(Box<dyn ErasedBatch>);

impl AnyBatch {
    /// Erases the type of a batch.
    pub fn new(batch: impl Batch) -> Self {
        Self(Box::new(batch))
    }

    /// Returns the batch itself, also if its type was erased more than once.
    pub(crate) fn into_any(self) -> Box<dyn Any> {
        match self.0.into_any().downcast::<Self>() {
            Ok(erased) => Self::into_any(*erased),
            Err(batch) => batch,
        }
    }
}

/// [`Batch`] for a trait object.
trait ErasedBatch: Batch {
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<B: Batch> ErasedBatch for B {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Batch for AnyBatch {
    fn items(&self) -> usize {
        self.0.items()
    }

    fn samples(&self) -> usize {
        self.0.samples()
    }

    fn records(&self) -> usize {
        self.0.records()
    }

    fn tokens(&self) -> usize {
        self.0.tokens()
    }

    fn row_count(&self) -> usize {
        self.0.row_count()
    }

    fn source_tokens(&self) -> usize {
        self.0.source_tokens()
    }

    fn last_is_label(&self) -> bool {
        self.0.last_is_label()
    }

    fn compared(&self) -> Option<Compared> {
        self.0.compared()
    }

    fn answered(&mut self, numbers: Vec<f32>) {
        self.0.answered(numbers);
    }
}

/// A stream of batches of any type.
pub(crate) struct AnyBatches<B>(pub Arc<dyn Batches<Batch = B>>);

impl<B: Batch> Batches for AnyBatches<B> {
    type Batch = AnyBatch;

    fn samples(&self, epoch: u64) -> usize {
        self.0.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<AnyBatch, DataError> {
        self.0.batch(epoch, positions).map(AnyBatch::new)
    }

    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        self.0.padded_tokens(epoch, positions)
    }
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::TokenBatch;

    use super::*;

    #[test]
    fn a_batch_is_itself_however_often_its_type_is_erased() {
        let batch = || TokenBatch::from_rows(vec![vec![1, 2, 3]], 0).unwrap();
        for erased in [AnyBatch::new(batch()), AnyBatch::new(AnyBatch::new(AnyBatch::new(batch())))] {
            assert_eq!(erased.items(), batch().items());
            assert!(erased.into_any().downcast::<TokenBatch>().is_ok());
        }
    }
}
