//! The global batches that training consumes, as the micro-batches of a rank.

use std::ops::Range;

use firebrick_datasets::{Amount, Batch, Batches, Cursor, Cut, DataError, Prefetch, Requests, SampleError};
use firebrick_world::Communicator;

use crate::Data;
use crate::engine::optional_batch::{Deal, OptionalBatch, Spare};

/// A rank's share of each global batch.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
}

impl Share {
    /// The whole global batch.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// The share of a rank, where so many in a row share the tokens of their samples.
    pub fn of(world: &Communicator, per_batch: usize) -> Self {
        Self { rank: world.rank() / per_batch, ranks: world.size() / per_batch }
    }
}

/// Draws a rank's share of whole global batches: all its micro-batches of one optimizer step, before the first of them
/// is used.
pub struct Feed<B: Batch> {
    ahead: Prefetch<Deal<B>>,
    spare: Spare<B>,
    /// The share of the next global batch, if it has been drawn.
    next: Option<Result<RankBatch<B>, DataError>>,
}

/// A rank's share of the global batch of one optimizer step.
pub struct RankBatch<B> {
    /// The epoch of its samples.
    pub epoch: u64,
    /// This rank's micro-batches.
    pub micro_batches: Vec<MicroBatch<B>>,
    /// The position of the stream after the global batch.
    pub after: Cursor,
}

/// A micro-batch and its position in the stream.
pub struct MicroBatch<B> {
    /// `None` if the last samples of an epoch are too few for all ranks.
    pub batch: Option<B>,
    /// The positions of its samples in the order of the epoch.
    pub positions: Range<usize>,
}

impl<B: Batch> MicroBatch<B> {
    /// Returns the number of supervised items.
    pub fn items(&self) -> usize {
        self.batch.as_ref().map_or(0, Batch::items)
    }

    /// Returns the number of tokens, without padding.
    pub fn tokens(&self) -> usize {
        self.batch.as_ref().map_or(0, Batch::tokens)
    }
}

impl<B: Batch> Feed<B> {
    /// Draws a rank's share of the global batches after `cursor`, with `per_step` micro-batches each.
    pub fn new(data: &Data<B>, cursor: Cursor, per_step: usize, share: Share) -> Result<Self, DataError> {
        let requests = Requests::new(data.train.clone(), cursor, cut(data, per_step, share)?);
        let ahead = data.workers.saturating_mul(2).saturating_add(2);
        let deal = Deal(data.train.clone());
        let spare = Spare::new(data.train.clone());
        Ok(Self { ahead: Prefetch::new(deal, requests, data.workers, ahead), spare, next: None })
    }

    /// Returns the share of the next global batch. There always is one, because epochs repeat.
    pub fn next_batch(&mut self) -> Result<RankBatch<B>, DataError> {
        match self.next.take() {
            Some(next) => next,
            None => self.draw(),
        }
    }

    /// Draws the share of the next global batch and keeps it. Returns `None` if it cannot be drawn:
    /// [`next_batch`](Self::next_batch) then returns the error.
    pub fn peek(&mut self) -> Option<&RankBatch<B>> {
        if self.next.is_none() {
            self.next = Some(self.draw());
        }
        self.next.as_ref()?.as_ref().ok()
    }

    fn draw(&mut self) -> Result<RankBatch<B>, DataError> {
        let mut micro_batches = Vec::new();
        loop {
            let Some(delivered) = self.ahead.next() else {
                return Err(DataError::Sample(SampleError::EmptyEpoch { epoch: 0 }));
            };
            let (request, OptionalBatch(batch)) = delivered?;
            micro_batches.push(MicroBatch { batch, positions: request.positions });
            if let Some(after) = request.ends_step {
                return Ok(RankBatch { epoch: request.epoch, micro_batches, after });
            }
        }
    }

    /// Returns the samples at these positions again.
    pub fn again(&self, epoch: u64, positions: Range<usize>) -> Result<B, DataError> {
        self.spare.stream().batch(epoch, positions)
    }

    /// Returns a batch that belongs to no optimizer step.
    pub fn spare(&mut self) -> Result<B, DataError> {
        self.spare.batch()
    }
}

/// Returns how an epoch is cut for a rank, with `per_step` micro-batches per optimizer step on each rank.
pub fn cut<B: Batch>(data: &Data<B>, per_step: usize, share: Share) -> Result<Cut, DataError> {
    let global = data.micro_batch.times(per_step).times(share.ranks);
    Cut::new(global, data.micro_batch)?.for_rank(share.rank, share.ranks)
}

/// Returns whether an optimizer step can have several micro-batches on a rank.
///
/// A global batch bounded by tokens is divided among the ranks by samples. So a rank's share may have more tokens than
/// `per_step` micro-batches hold.
pub(crate) fn several_micro_batches<B: Batch>(data: &Data<B>, per_step: usize, ranks: usize) -> bool {
    per_step > 1 || (ranks > 1 && matches!(data.micro_batch, Amount::Tokens(_)))
}

/// Counts the optimizer steps of an epoch, with `per_step` micro-batches on each rank.
pub(crate) fn steps_in_epoch<B: Batch>(
    data: &Data<B>,
    epoch: u64,
    per_step: usize,
    ranks: usize,
) -> Result<u64, DataError> {
    let samples = data.train.samples(epoch);
    let cut = cut(data, per_step, Share { rank: 0, ranks })?;
    if let Amount::Samples(global) = data.micro_batch.times(per_step).times(ranks) {
        return Ok(samples.div_ceil(global) as u64);
    }
    let (mut start, mut steps) = (0, 0);
    while start < samples {
        start = cut.global_batch(&data.train, epoch, start, samples)?.end;
        steps += 1;
    }
    Ok(steps)
}

/// The most samples to read in order to count global batches bounded by tokens.
const MOST_LOOKED_AT: usize = 20_000_000;

/// Counts the optimizer steps of several epochs, and so the updates, with `per_step` micro-batches on each rank. Counts
/// at most the first thousand epochs, or as many as have twenty million samples, and extrapolates the rest from their
/// average, so that a run of countless epochs starts quickly.
///
/// # Errors
///
/// A sample whose length is counted cannot be read.
pub fn updates_in_epochs<B: Batch>(
    data: &Data<B>,
    epochs: u64,
    per_step: usize,
    ranks: usize,
) -> Result<u64, DataError> {
    let most = match data.micro_batch {
        Amount::Samples(_) => 1000,
        Amount::Tokens(_) => (MOST_LOOKED_AT / data.train.samples(0).max(1)).clamp(1, 1000) as u64,
    };
    let counted = epochs.min(most);
    let mut sum = 0;
    for epoch in 0..counted {
        sum += steps_in_epoch(data, epoch, per_step, ranks)?;
    }
    Ok(if epochs > counted { (sum as f64 / counted as f64 * epochs as f64) as u64 } else { sum })
}

/// Returns the micro-batches of the first epoch, prefetched as in training.
pub fn first_epoch<B: Batch>(
    data: &Data<B>,
    per_step: usize,
) -> Result<impl Iterator<Item = Result<B, DataError>> + use<B>, DataError> {
    let requests = Requests::new(data.train.clone(), Cursor::default(), cut(data, per_step, Share::WHOLE)?);
    let requests = requests.take_while(|request| request.as_ref().map_or(true, |request| request.epoch == 0));
    let ahead = Prefetch::new(data.train.clone(), requests, data.workers, 2 * data.workers + 2);
    Ok(ahead.map(|delivered| Ok(delivered?.1)))
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::Windows;

    use super::*;

    /// Returns epoch and first sample of each micro-batch of an optimizer step, wherever the stream starts.
    #[test]
    fn a_micro_batch_knows_its_place_in_the_epoch() {
        let data = Data::new(Windows::new(vec![0; 12], 1).unwrap()).micro_batch(2); // 11 samples
        let steps = |cursor| {
            let mut feed = Feed::new(&data, cursor, 2, Share::WHOLE).unwrap();
            let mut places = || {
                // A global batch that has been looked at is still the next one.
                let ahead = feed.peek().unwrap().after;
                let batch = feed.next_batch().unwrap();
                assert_eq!(batch.after, ahead);
                let first = batch.micro_batches.iter().map(|micro| micro.positions.start);
                (batch.epoch, first.collect::<Vec<_>>())
            };
            [places(), places(), places()]
        };
        let start = steps(Cursor::default());
        assert_eq!(start, [(0, vec![0, 2]), (0, vec![4, 6]), (0, vec![8, 10])]);
        let later = steps(Cursor { epoch: 0, consumed: 8 });
        assert_eq!(later, [(0, vec![8, 10]), (1, vec![0, 2]), (1, vec![4, 6])]);
    }

    /// Returns the positions of two ranks' micro-batches and their numbers of samples, in the optimizer steps of an
    /// epoch.
    #[test]
    fn ranks_share_each_global_batch_and_the_last_one_may_leave_one_without_samples() {
        let data = Data::new(Windows::new(vec![0; 10], 1).unwrap()).micro_batch(2); // 9 samples
        let steps = |rank| {
            let mut feed = Feed::new(&data, Cursor::default(), 2, Share { rank, ranks: 2 }).unwrap();
            let mut places = || {
                let batch = feed.next_batch().unwrap();
                let samples = |micro: &MicroBatch<_>| micro.batch.as_ref().map_or(0, Batch::samples);
                let batches = batch.micro_batches.iter().map(|micro| (micro.positions.start, samples(micro)));
                (batches.collect::<Vec<_>>(), batch.after)
            };
            [places(), places()]
        };
        let after = [Cursor { epoch: 0, consumed: 8 }, Cursor { epoch: 1, consumed: 0 }];
        assert_eq!(steps(0), [(vec![(0, 2), (2, 2)], after[0]), (vec![(8, 1)], after[1])]);
        assert_eq!(steps(1), [(vec![(4, 2), (6, 2)], after[0]), (vec![(9, 0)], after[1])]);
        assert_eq!(steps_in_epoch(&data, 0, 2, 2).unwrap(), 2);
        assert_eq!(steps_in_epoch(&data, 0, 2, 3).unwrap(), 1);
    }
}
