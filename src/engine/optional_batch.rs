//! Batches of a rank, which may have none, and a batch that stands in for a missing one.

use std::ops::Range;

use firebrick_datasets::{Batch, Batches, DataError};

use crate::data::Stream;

/// The batch of a rank. `None` if the last samples of an epoch are too few for all ranks.
pub(crate) struct OptionalBatch<B>(pub Option<B>);

impl<B: Batch> Batch for OptionalBatch<B> {
    fn items(&self) -> usize {
        self.0.as_ref().map_or(0, Batch::items)
    }

    fn samples(&self) -> usize {
        self.0.as_ref().map_or(0, Batch::samples)
    }

    fn records(&self) -> usize {
        self.0.as_ref().map_or(0, Batch::records)
    }

    fn tokens(&self) -> usize {
        self.0.as_ref().map_or(0, Batch::tokens)
    }
}

/// A stream that does not collate empty ranges, because not every collator can.
pub(crate) struct Deal<B>(pub Stream<B>);

impl<B: Batch> Batches for Deal<B> {
    type Batch = OptionalBatch<B>;

    fn samples(&self, epoch: u64) -> usize {
        self.0.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<OptionalBatch<B>, DataError> {
        match positions.is_empty() {
            true => Ok(OptionalBatch(None)),
            false => self.0.batch(epoch, positions).map(|batch| OptionalBatch(Some(batch))),
        }
    }

    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        self.0.padded_tokens(epoch, positions)
    }
}

/// A batch for the passes of a rank that has none of its own while others have.
pub(crate) struct Spare<B> {
    stream: Stream<B>,
    position: Option<usize>,
}

impl<B: Batch> Spare<B> {
    pub fn new(stream: Stream<B>) -> Self {
        Self { stream, position: None }
    }

    /// Returns the stream that it is of.
    pub fn stream(&self) -> &Stream<B> {
        &self.stream
    }

    /// Returns the first sample with supervised items, which takes part in what the ranks do together: a batch without a
    /// token enters no segment. If no sample has any, all ranks get the first one.
    pub fn batch(&mut self) -> Result<B, DataError> {
        if let Some(position) = self.position {
            return self.stream.batch(0, position..position + 1);
        }
        for position in 0..self.stream.samples(0) {
            let batch = self.stream.batch(0, position..position + 1)?;
            if batch.items() > 0 {
                self.position = Some(position);
                return Ok(batch);
            }
        }
        // The search would read all samples again for each batch.
        self.position = Some(0);
        self.stream.batch(0, 0..1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebrick_datasets::collators::{CausalLm, CausalSample};
    use firebrick_datasets::{Batcher, Encoder, InMemory, TokenBatch, Tokenizer};

    use super::*;

    /// Rows of these lengths. A row of one token has no label.
    fn lengths(lengths: &[usize]) -> Stream<TokenBatch> {
        let sample = |&length: &usize| CausalSample { ids: vec![0; length], ..CausalSample::default() };
        let encoder = Encoder::new(Arc::new(Tokenizer::characters("a").unwrap()));
        let samples = InMemory::new(lengths.iter().map(sample).collect());
        Arc::new(Batcher::new(samples, CausalLm::new(encoder).pad_id(0)))
    }

    #[test]
    fn an_empty_range_is_never_collated() {
        let deal = Deal(lengths(&[2, 3]));
        assert!(deal.batch(0, 1..1).unwrap().0.is_none());
        let dealt = deal.batch(0, 0..2).unwrap();
        assert_eq!((dealt.items(), dealt.samples(), dealt.tokens()), (3, 2, 5));
    }

    #[test]
    fn the_spare_batch_has_an_item_wherever_a_sample_has() {
        let mut spare = Spare::new(lengths(&[1, 1, 4, 2]));
        for _ in 0..2 {
            assert_eq!(spare.batch().unwrap().shape(), [1, 4]);
        }
        assert_eq!(Spare::new(lengths(&[1, 1])).batch().unwrap().shape(), [1, 1]);
    }
}
