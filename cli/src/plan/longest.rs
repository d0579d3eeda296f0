//! Finds the micro-batch that needs the most memory among the first ones.

use std::ops::Range;

use firebrick_datasets::{Batch, Batches, Cursor, DataError, Requests, SampleError};

use crate::{PlanError, RunError};
use firebrick::data::Stream;
use firebrick::engine::feed::{Share, cut};
use firebrick::{AnyBatch, Data};

/// How many micro-batches a plan examines. A longer one is unlikely after these, and each has to be collated.
pub(super) const LOOKED_AT: usize = 256;

/// The longest micro-batch, and averages over the examined ones.
pub(super) struct Longest {
    stream: Stream<AnyBatch>,
    positions: Range<usize>,
    /// Tokens of the longest, padding included.
    pub tokens: usize,
    /// Samples of the longest.
    pub samples: usize,
    /// Rows of the longest.
    pub rows: usize,
    /// Tokens of each row that a model reads.
    pub columns: usize,
    /// Tokens of a micro-batch on average, padding included.
    pub mean_tokens: f64,
    /// Source tokens among them.
    pub mean_source_tokens: f64,
    /// Rows of a micro-batch on average.
    pub mean_rows: f64,
}

impl Longest {
    /// Finds the longest of the first `looked_at` micro-batches of the first epoch, for ranks that together process
    /// `per_step` micro-batches in an update.
    ///
    /// # Errors
    ///
    /// The data cannot be read, or no item of it is supervised.
    pub fn of(data: &Data<AnyBatch>, per_step: usize, looked_at: usize) -> Result<Self, RunError> {
        // Its tokens, positions, samples, rows, and the tokens of each row that are labels only.
        let mut best: Option<(usize, Range<usize>, [usize; 3])> = None;
        let mut sums = [0usize; 4];
        let cut = cut(data, per_step, Share::WHOLE)?;
        for request in Requests::new(data.train.clone(), Cursor::default(), cut).take(looked_at) {
            let request = request?;
            if request.epoch > 0 {
                break;
            }
            let batch = data.train.batch(0, request.positions.clone())?;
            let tokens = match data.train.padded_tokens(0, request.positions.clone()) {
                Err(DataError::Sample(SampleError::NoTokenCounts)) => batch.tokens(),
                counted => counted?,
            };
            let rows = batch.row_count();
            sums = [sums[0] + 1, sums[1] + tokens, sums[2] + batch.source_tokens(), sums[3] + rows];
            let is_longer = best.as_ref().is_none_or(|(most, ..)| tokens > *most);
            if batch.items() > 0 && is_longer {
                let unread = usize::from(batch.last_is_label());
                best = Some((tokens, request.positions, [batch.samples(), rows, unread]));
            }
        }
        let [looked, ..] = sums;
        let [_, mean_tokens, mean_source_tokens, mean_rows] =
            sums.map(|sum| sum as f64 / looked.max(1) as f64);
        let Some((tokens, positions, [samples, rows, unread])) = best else {
            return Err(PlanError::NothingToLearn { looked }.into());
        };
        Ok(Self {
            stream: data.train.clone(),
            positions,
            tokens,
            samples,
            rows,
            columns: (tokens / rows.max(1)).saturating_sub(unread),
            mean_tokens,
            mean_source_tokens,
            mean_rows,
        })
    }

    /// Returns the position of its first sample.
    pub fn start(&self) -> usize {
        self.positions.start
    }

    /// Collates the micro-batch again.
    pub fn batch(&self) -> Result<AnyBatch, DataError> {
        self.stream.batch(0, self.positions.clone())
    }
}
