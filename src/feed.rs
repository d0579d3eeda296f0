//! The windows that training consumes, one after the other.

use firebrick_datasets::{Amount, Batch, Batches, Cursor, Cut, DataError, Prefetch, Requests};

use crate::Data;
use crate::data::Stream;

/// Draws whole windows: all micro-batches of one update, before the first of them is used.
pub(crate) struct Feed<B: Batch> {
    ahead: Prefetch<Stream<B>>,
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
    pub batch: B,
    /// The place in the epoch's order of its first sample.
    pub first: u64,
}

impl<B: Batch> Window<B> {
    /// Supervised items of the whole window.
    pub fn items(&self) -> usize {
        self.batches.iter().map(|micro| micro.batch.items()).sum()
    }

    /// Tokens of the whole window, padding not counted.
    pub fn tokens(&self) -> usize {
        self.batches.iter().map(|micro| micro.batch.tokens()).sum()
    }
}

impl<B: Batch> Feed<B> {
    /// The windows that follow `cursor`, of `per_window` micro-batches.
    pub fn new(data: &Data<B>, cursor: Cursor, per_window: usize) -> Result<Self, DataError> {
        let requests = Requests::new(data.train.clone(), cursor, cut(data, per_window)?);
        let ahead = data.workers.saturating_mul(2).saturating_add(2);
        Ok(Self { ahead: Prefetch::new(data.train.clone(), requests, data.workers, ahead) })
    }

    /// The next window. There always is one: after an epoch comes the next.
    pub fn window(&mut self) -> Result<Window<B>, DataError> {
        let mut batches = Vec::new();
        loop {
            let Some(delivered) = self.ahead.next() else {
                return Err(DataError::EmptyEpoch { epoch: 0 });
            };
            let (request, batch) = delivered?;
            batches.push(MicroBatch { batch, first: request.positions.start as u64 });
            if let Some(after) = request.closes_window {
                return Ok(Window { epoch: request.epoch, batches, after });
            }
        }
    }
}

/// The cut of a run on one rank: windows of `per_window` micro-batches.
pub(crate) fn cut<B: Batch>(data: &Data<B>, per_window: usize) -> Result<Cut, DataError> {
    Cut::new(data.micro_batch.times(per_window), data.micro_batch)
}

/// How many windows an epoch has.
pub(crate) fn windows_in_epoch<B: Batch>(
    data: &Data<B>,
    epoch: u64,
    per_window: usize,
) -> Result<u64, DataError> {
    let samples = data.train.samples(epoch);
    let cut = cut(data, per_window)?;
    if let Amount::Samples(micro_batch) = data.micro_batch {
        return Ok(samples.div_ceil(micro_batch.saturating_mul(per_window)) as u64);
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
) -> Result<u64, DataError> {
    let most = match data.micro_batch {
        Amount::Samples(_) => 1000,
        Amount::Tokens(_) => (MOST_LOOKED_AT / data.train.samples(0).max(1)).clamp(1, 1000) as u64,
    };
    let counted = epochs.min(most);
    let mut sum = 0;
    for epoch in 0..counted {
        sum += windows_in_epoch(data, epoch, per_window)?;
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
    let requests = Requests::new(data.train.clone(), Cursor::default(), cut(data, per_window)?);
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
            let mut feed = Feed::new(&data, cursor, 2).unwrap();
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
}
