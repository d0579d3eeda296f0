//! The windows that training consumes, one after the other.

use firebrick_datasets::{Batch, Cursor, DataError, Prefetch, Requests};

use crate::Data;
use crate::data::Stream;

/// Draws whole windows: all micro-batches of one update, before the first of them is used.
pub(crate) struct Feed<B: Batch> {
    ahead: Prefetch<Stream<B>>,
}

/// The micro-batches of one update.
pub(crate) struct Window<B> {
    pub epoch: u64,
    pub batches: Vec<B>,
    /// Where the stream stands after it.
    pub after: Cursor,
}

impl<B: Batch> Feed<B> {
    /// The windows that follow `cursor`, of `per_window` micro-batches.
    pub fn new(data: &Data<B>, cursor: Cursor, per_window: usize) -> Result<Self, DataError> {
        let requests = Requests::new(data.train.clone(), cursor, data.micro_batch, per_window)?;
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
            batches.push(batch);
            if let Some(after) = request.closes_window {
                return Ok(Window { epoch: request.epoch, batches, after });
            }
        }
    }
}

/// How many windows an epoch has.
pub(crate) fn windows_in_epoch<B: Batch>(data: &Data<B>, epoch: u64, per_window: usize) -> u64 {
    let window = data.micro_batch.saturating_mul(per_window).max(1);
    data.train.samples(epoch).div_ceil(window) as u64
}

/// How many windows so many epochs have. Past the first thousand each counts as much as those do on
/// average, so that an endless run is no endless count.
pub(crate) fn updates_in_epochs<B: Batch>(data: &Data<B>, epochs: u64, per_window: usize) -> u64 {
    let counted = epochs.min(1000);
    let sum: u64 = (0..counted).map(|epoch| windows_in_epoch(data, epoch, per_window)).sum();
    match epochs > counted {
        true => (sum as f64 / counted as f64 * epochs as f64) as u64,
        false => sum,
    }
}
