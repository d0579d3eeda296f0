//! The windows that training consumes, one after the other.

use firebrick_datasets::{Amount, Batch, Batches, Cursor, Cut, DataError, Prefetch, Requests};
use firebrick_strategies::Communicator;

use crate::Data;
use crate::optional_batch::{Deal, OptionalBatch, Spare};

/// Whose part of each global batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub rank: usize,
    pub ranks: usize,
}

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// That of a rank.
    pub fn of(world: &Communicator) -> Self {
        Self { rank: world.rank(), ranks: world.size() }
    }
}

/// Draws whole windows: all micro-batches of one update, before the first of them is used.
pub(crate) struct Feed<B: Batch> {
    ahead: Prefetch<Deal<B>>,
    spare: Spare<B>,
}

/// The micro-batches of one update.
pub(crate) struct Window<B> {
    pub epoch: u64,
    pub batches: Vec<MicroBatch<B>>,
    /// Where the stream stands after it.
    pub after: Cursor,
}

/// A micro-batch and its place in the stream.
pub(crate) struct MicroBatch<B> {
    /// Nothing, where the last samples of an epoch do not suffice for all ranks.
    pub batch: Option<B>,
    /// The place in the epoch's order of its first sample.
    pub first: u64,
}

impl<B: Batch> MicroBatch<B> {
    /// Supervised items.
    pub fn items(&self) -> usize {
        self.batch.as_ref().map_or(0, Batch::items)
    }

    /// Tokens, padding not counted.
    pub fn tokens(&self) -> usize {
        self.batch.as_ref().map_or(0, Batch::tokens)
    }
}

impl<B: Batch> Feed<B> {
    /// A rank's part of the windows that follow `cursor`, of `per_window` micro-batches.
    pub fn new(data: &Data<B>, cursor: Cursor, per_window: usize, share: Share) -> Result<Self, DataError> {
        let requests = Requests::new(data.train.clone(), cursor, cut(data, per_window, share)?);
        let ahead = data.workers.saturating_mul(2).saturating_add(2);
        let deal = Deal(data.train.clone());
        let spare = Spare::new(data.train.clone());
        Ok(Self { ahead: Prefetch::new(deal, requests, data.workers, ahead), spare })
    }

    /// The next window. There always is one: after an epoch comes the next.
    pub fn window(&mut self) -> Result<Window<B>, DataError> {
        let mut batches = Vec::new();
        loop {
            let Some(delivered) = self.ahead.next() else {
                return Err(DataError::EmptyEpoch { epoch: 0 });
            };
            let (request, OptionalBatch(batch)) = delivered?;
            batches.push(MicroBatch { batch, first: request.positions.start as u64 });
            if let Some(after) = request.closes_window {
                return Ok(Window { epoch: request.epoch, batches, after });
            }
        }
    }

    /// A batch that is no part of any window.
    pub fn spare(&mut self) -> Result<B, DataError> {
        self.spare.batch()
    }
}

/// How an epoch is cut for a rank: windows of `per_window` micro-batches on each.
pub(crate) fn cut<B: Batch>(data: &Data<B>, per_window: usize, share: Share) -> Result<Cut, DataError> {
    let global = data.micro_batch.times(per_window).times(share.ranks);
    Cut::new(global, data.micro_batch)?.for_rank(share.rank, share.ranks)
}

/// Whether a window can hold several micro-batches on a rank, of `per_window` that each is meant to have.
///
/// A global batch that is bounded by tokens is dealt to the ranks by samples, so the part of a rank may have more
/// tokens than its micro-batches.
pub(crate) fn several_micro_batches<B: Batch>(data: &Data<B>, per_window: usize, ranks: usize) -> bool {
    per_window > 1 || (ranks > 1 && matches!(data.micro_batch, Amount::Tokens(_)))
}

/// How many windows an epoch has, of `per_window` micro-batches on each of so many ranks.
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

/// Samples that are looked at to count windows bounded by tokens.
const MOST_LOOKED_AT: usize = 20_000_000;

/// How many windows so many epochs have. Past the first thousand, or as many as have twenty million
/// samples, each counts as much as those do on average, so that an endless run is no endless count.
pub(crate) fn updates_in_epochs<B: Batch>(
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
    Ok(match epochs > counted {
        true => (sum as f64 / counted as f64 * epochs as f64) as u64,
        false => sum,
    })
}

/// The micro-batches of the first epoch, computed ahead as in training.
pub(crate) fn first_epoch<B: Batch>(
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

    /// Epoch and first sample of each micro-batch of a window, wherever the stream was entered.
    #[test]
    fn a_micro_batch_knows_its_place_in_the_epoch() {
        let data = Data::new(Windows::new(vec![0; 12], 1).unwrap()).micro_batch(2); // 11 samples
        let windows = |cursor| {
            let mut feed = Feed::new(&data, cursor, 2, Share::WHOLE).unwrap();
            let mut places = || {
                let window = feed.window().unwrap();
                let first = window.batches.iter().map(|micro| micro.first);
                (window.epoch, first.collect::<Vec<_>>())
            };
            [places(), places(), places()]
        };
        let start = windows(Cursor::default());
        assert_eq!(start, [(0, vec![0, 2]), (0, vec![4, 6]), (0, vec![8, 10])]);
        let later = windows(Cursor { epoch: 0, consumed: 8 });
        assert_eq!(later, [(0, vec![8, 10]), (1, vec![0, 2]), (1, vec![4, 6])]);
    }

    /// Places of two ranks' micro-batches and how many samples each has, in the windows of an epoch.
    #[test]
    fn ranks_share_each_window_and_the_last_one_may_leave_one_without_samples() {
        let data = Data::new(Windows::new(vec![0; 10], 1).unwrap()).micro_batch(2); // 9 samples
        let windows = |rank| {
            let mut feed = Feed::new(&data, Cursor::default(), 2, Share { rank, ranks: 2 }).unwrap();
            let mut places = || {
                let window = feed.window().unwrap();
                let samples = |micro: &MicroBatch<_>| micro.batch.as_ref().map_or(0, Batch::samples);
                let batches = window.batches.iter().map(|micro| (micro.first, samples(micro)));
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
