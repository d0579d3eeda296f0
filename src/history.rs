//! What a run has been so far.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use firebrick_datasets::Cursor;

use crate::TrainError;
use crate::log::EvaluationNumbers;
use crate::rank_report::Exchanged;
use crate::step::StepNumbers;

/// Skipped updates, or updates from a loss that is not finite, in a row after which a run is given up.
const MOST_SKIPS: u64 = 100;
/// Windows over which the reported training loss is the mean.
const RECENT: usize = 100;

/// What the run has been so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub cursor: Cursor,
    pub recent: VecDeque<(f64, usize)>,
    pub last: StepNumbers,
    pub tokens: usize,
    pub step_seconds: Vec<f64>,
    pub skipped: u64,
    skipped_in_a_row: u64,
    infinite_in_a_row: u64,
    /// The rank that it began with, where there are several.
    infinite_first: Option<usize>,
    pub peak_bytes: usize,
    pub activation_bytes: usize,
    pub validation: Option<EvaluationNumbers>,
    pub best: Option<EvaluationNumbers>,
    /// Where the weights of the best evaluation are.
    pub best_path: Option<PathBuf>,
    /// Why the run ended before its time.
    pub stopped: Option<String>,
    pub first_step: Option<Instant>,
    /// With the other ranks, in all steps.
    pub exchanged: Exchanged,
}

impl History {
    /// Adds a step, and fills in the numbers that need the steps before it. `infinite` is the first of many
    /// ranks whose part of the loss is not finite.
    pub fn add(&mut self, numbers: &mut StepNumbers, infinite: Option<usize>) -> Result<(), TrainError> {
        self.first_step.get_or_insert_with(Instant::now);
        match &numbers.skipped {
            None => self.skipped_in_a_row = 0,
            Some(reason) => {
                self.skipped += 1;
                self.skipped_in_a_row += 1;
                if self.skipped_in_a_row >= MOST_SKIPS {
                    return Err(TrainError::OnlySkips {
                        count: self.skipped_in_a_row,
                        reason: reason.clone(),
                    });
                }
            }
        }
        let finite = numbers.loss.is_finite() || numbers.skipped.is_some();
        if self.infinite_in_a_row == 0 {
            self.infinite_first = infinite;
        }
        self.infinite_in_a_row = if finite { 0 } else { self.infinite_in_a_row + 1 };
        if self.infinite_in_a_row >= MOST_SKIPS {
            return Err(TrainError::Diverged { updates: self.infinite_in_a_row, first: self.infinite_first });
        }
        numbers.skipped_steps = self.skipped;
        numbers.tokens_per_second = numbers.tokens as f64 / numbers.seconds.max(f64::MIN_POSITIVE);
        self.peak_bytes = self.peak_bytes.max(numbers.peak_bytes);
        numbers.peak_bytes = self.peak_bytes;
        self.activation_bytes = self.activation_bytes.max(numbers.activation_bytes);
        self.tokens += numbers.tokens;
        self.step_seconds.push(numbers.seconds);
        if numbers.skipped.is_none() {
            self.recent.push_back((numbers.loss, numbers.items));
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        }
        self.last = numbers.clone();
        Ok(())
    }
}
