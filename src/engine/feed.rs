//! The windows of micro-batches that training consumes.

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

/// Draws whole windows: all micro-batches of one update, before the first of them is used.
pub struct Feed<B: Batch> {
    ahead: Prefetch<Deal<B>>,
    spare: Spare<B>,
    /// The next window, if it has been drawn.
    next: Option<Result<Window<B>, DataError>>,
}

/// The micro-batches of one update.
pub struct Window<B> {
    /// The epoch of its samples.
    pub epoch: u64,
    /// This rank's micro-batches.
    pub batches: Vec<MicroBatch<B>>,
    /// The position of the stream after the window.
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
    /// Draws a rank's share of the windows after `cursor`, with `per_window` micro-batches each.
    pub fn new(data: &Data<B>, cursor: Cursor, per_window: usize, share: Share) -> Result<Self, DataError> {
        let requests = Requests::new(data.train.clone(), cursor, cut(data, per_window, share)?);
        let ahead = data.workers.saturating_mul(2).saturating_add(2);
        let deal = Deal(data.train.clone());
        let spare = Spare::new(data.train.clone());
        Ok(Self { ahead: Prefetch::new(deal, requests, data.workers, ahead), spare, next: None })
    }

    /// Returns the next window. There always is one, because epochs repeat.
    pub fn window(&mut self) -> Result<Window<B>, DataError> {
        match self.next.take() {
            Some(next) => next,
            None => self.draw(),
        }
    }

    /// Draws the next window and keeps it. Returns `None` if it cannot be drawn: [`window`](Self::window) then returns the
    /// error.
    pub fn peek(&mut self) -> Option<&Window<B>> {
        if self.next.is_none() {
            self.next = Some(self.draw());
        }
        self.next.as_ref()?.as_ref().ok()
    }

    fn draw(&mut self) -> Result<Window<B>, DataError> {
        let mut batches = Vec::new();
        loop {
            let Some(delivered) = self.ahead.next() else {
                return Err(DataError::Sample(SampleError::EmptyEpoch { epoch: 0 }));
            };
            let (request, OptionalBatch(batch)) = delivered?;
            batches.push(MicroBatch { batch, positions: request.positions });
            if let Some(after) = request.closes_window {
                return Ok(Window { epoch: request.epoch, batches, after });
            }
        }
    }

    /// Returns the samples at these positions again.
    pub fn again(&self, epoch: u64, positions: Range<usize>) -> Result<B, DataError> {
        self.spare.stream().batch(epoch, positions)
    }

    /// Returns a batch that belongs to no window.
    pub fn spare(&mut self) -> Result<B, DataError> {
        self.spare.batch()
    }
}

/// Returns how an epoch is cut for a rank, with `per_window` micro-batches in a window on each rank.
pub fn cut<B: Batch>(data: &Data<B>, per_window: usize, share: Share) -> Result<Cut, DataError> {
    let global = data.micro_batch.times(per_window).times(share.ranks);
    Cut::new(global, data.micro_batch)?.for_rank(share.rank, share.ranks)
}

/// Returns whether a window can hold several micro-batches on a rank.
///
/// A global batch bounded by tokens is divided among the ranks by samples. So a rank's part may have more tokens than
/// `per_window` micro-batches hold.
pub(crate) fn several_micro_batches<B: Batch>(data: &Data<B>, per_window: usize, ranks: usize) -> bool {
    per_window > 1 || (ranks > 1 && matches!(data.micro_batch, Amount::Tokens(_)))
}

/// Counts the windows of an epoch, with `per_window` micro-batches on each rank.
pub(crate) fn windows_in_epoch<B: Batch>(
    data: &Data<B>,
    epoch: u64,
    per_window: usize,
    ranks: usize,
) -> Result<u64, DataError> {
    let samples = data.train.samples(epoch);
    let cut = cut(data, per_window, Share { rank: 0, ranks })?;
    if let Amount::Samples(global) = data.micro_batch.times(per_window).times(ranks) {
        return Ok(samples.div_ceil(global) as u64);
    }
    let (mut start, mut windows) = (0, 0);
    while start < samples {
        start = cut.global_batch(&data.train, epoch, start, samples)?.end;
        windows += 1;
    }
    Ok(windows)
}

/// The most samples to read in order to count windows bounded by tokens.
const MOST_LOOKED_AT: usize = 20_000_000;

/// Counts the windows of several epochs, and so the updates, with `per_window` micro-batches on each rank. Counts at most
/// the first thousand epochs, or as many as have twenty million samples, and extrapolates the rest from their average,
/// so that a run of countless epochs starts quickly.
///
/// # Errors
///
/// A sample whose length is counted cannot be read.
pub fn updates_in_epochs<B: Batch>(
    data: &Data<B>,
    epochs: u64,
    per_window: usize,
    ranks: usize,
) -> Result<u64, DataError> {
    let most = match data.micro_batch {
        Amount::Samples(_) => 1000,
        Amount::Tokens(_) => (MOST_LOOKED_AT / data.train.samples(0).max(1)).clamp(1, 1000) as u64,
    };
    let counted = epochs.min(most);
    let mut sum = 0;
    for epoch in 0..counted {
        sum += windows_in_epoch(data, epoch, per_window, ranks)?;
    }
    Ok(if epochs > counted { (sum as f64 / counted as f64 * epochs as f64) as u64 } else { sum })
}

/// Returns the micro-batches of the first epoch, prefetched as in training.
pub fn first_epoch<B: Batch>(
    data: &Data<B>,
    per_window: usize,
) -> Result<impl Iterator<Item = Result<B, DataError>> + use<B>, DataError> {
    let requests = Requests::new(data.train.clone(), Cursor::default(), cut(data, per_window, Share::WHOLE)?);
    let requests = requests.take_while(|request| request.as_ref().map_or(true, |request| request.epoch == 0));
    let ahead = Prefetch::new(data.train.clone(), requests, data.workers, 2 * data.workers + 2);
    Ok(ahead.map(|delivered| Ok(delivered?.1)))
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::Windows;

    use super::*;

    /// Returns epoch and first sample of each micro-batch of a window, wherever the stream starts.
    #[test]
    fn a_micro_batch_knows_its_place_in_the_epoch() {
        let data = Data::new(Windows::new(vec![0; 12], 1).unwrap()).micro_batch(2); // 11 samples
        let windows = |cursor| {
            let mut feed = Feed::new(&data, cursor, 2, Share::WHOLE).unwrap();
            let mut places = || {
                // A window that has been looked at is still the next one.
                let ahead = feed.peek().unwrap().after;
                let window = feed.window().unwrap();
                assert_eq!(window.after, ahead);
                let first = window.batches.iter().map(|micro| micro.positions.start);
                (window.epoch, first.collect::<Vec<_>>())
            };
            [places(), places(), places()]
        };
        let start = windows(Cursor::default());
        assert_eq!(start, [(0, vec![0, 2]), (0, vec![4, 6]), (0, vec![8, 10])]);
        let later = windows(Cursor { epoch: 0, consumed: 8 });
        assert_eq!(later, [(0, vec![8, 10]), (1, vec![0, 2]), (1, vec![4, 6])]);
    }

    /// Returns the positions of two ranks' micro-batches and their numbers of samples, in the windows of an epoch.
    #[test]
    fn ranks_share_each_window_and_the_last_one_may_leave_one_without_samples() {
        let data = Data::new(Windows::new(vec![0; 10], 1).unwrap()).micro_batch(2); // 9 samples
        let windows = |rank| {
            let mut feed = Feed::new(&data, Cursor::default(), 2, Share { rank, ranks: 2 }).unwrap();
            let mut places = || {
                let window = feed.window().unwrap();
                let samples = |micro: &MicroBatch<_>| micro.batch.as_ref().map_or(0, Batch::samples);
                let batches = window.batches.iter().map(|micro| (micro.positions.start, samples(micro)));
                (batches.collect::<Vec<_>>(), window.after)
            };
            [places(), places()]
        };
        let after = [Cursor { epoch: 0, consumed: 8 }, Cursor { epoch: 1, consumed: 0 }];
        assert_eq!(windows(0), [(vec![(0, 2), (2, 2)], after[0]), (vec![(8, 1)], after[1])]);
        assert_eq!(windows(1), [(vec![(4, 2), (6, 2)], after[0]), (vec![(9, 0)], after[1])]);
        assert_eq!(windows_in_epoch(&data, 0, 2, 2).unwrap(), 2);
        assert_eq!(windows_in_epoch(&data, 0, 2, 3).unwrap(), 1);
    }
}
