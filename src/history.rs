//! What a run has been so far.

use std::path::PathBuf;
use std::time::Instant;

use firebrick_strategies::SkipReason;

use crate::TrainError;
use crate::log::{EvaluationNumbers, Past};
use crate::progress::{MANY_INFINITE, Progress};
use crate::rank_report::Exchanged;
use crate::step::StepNumbers;
use crate::writes::FailedWrites;

/// Skipped updates, or updates from a loss that is not finite, in a row after which a run is given up.
const MOST_SKIPS: u64 = 100;

/// What the run has been so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// What outlives the process.
    pub progress: Progress,
    pub last: StepNumbers,
    pub tokens: usize,
    pub step_seconds: Vec<f64>,
    pub peak_bytes: usize,
    pub activation_bytes: usize,
    /// Where the weights of the best evaluation are.
    pub best_path: Option<PathBuf>,
    /// Whether this process has made an update or an evaluation.
    pub has_gone_on: bool,
    /// Updates made at the newest checkpoint.
    pub saved_step: Option<u64>,
    /// Why the last save failed, if it did.
    pub save_error: Option<String>,
    /// The files that could not be written at some time.
    pub failed_writes: Vec<FailedWrites>,
    /// Whether it was told to end.
    pub interrupted: bool,
    /// Why the run ended before its time.
    pub stopped: Option<String>,
    pub first_step: Option<Instant>,
    /// With the other ranks, in all steps.
    pub exchanged: Exchanged,
}

impl History {
    /// That of a run which goes on after so many updates, as its log tells it.
    pub fn going_on(progress: Progress, updates: u64, past: Past) -> Self {
        let Past { tokens, step_seconds, peak_bytes, activation_bytes, last, .. } = past;
        let last = last.unwrap_or_default();
        let last = StepNumbers {
            step: updates,
            gradient_norm: last.gradient_norm.unwrap_or_default(),
            loss_scale: last.loss_scale,
            ..StepNumbers::default()
        };
        let progress = progress.going_on(updates);
        Self { last, progress, tokens, step_seconds, peak_bytes, activation_bytes, ..Self::default() }
    }

    /// Where the weights of the best evaluation before were found, and its step.
    pub fn found_best(&self) -> Option<(PathBuf, u64)> {
        let step = self.progress.best.as_ref().map(|best| best.step);
        self.best_path.clone().zip(step)
    }

    /// Adds a step, and fills in the numbers that need the steps before it. `infinite` is the first of many
    /// ranks whose part of the loss is not finite.
    pub fn add(&mut self, numbers: &mut StepNumbers, infinite: Option<usize>) -> Result<(), TrainError> {
        self.first_step.get_or_insert_with(Instant::now);
        let progress = &mut self.progress;
        let finite = numbers.loss.is_finite();
        if progress.skipped_in_a_row == 0 && progress.infinite_in_a_row == 0 {
            progress.infinite_first = infinite;
        }
        // A window without items says nothing of the loss.
        if numbers.items > 0 {
            progress.infinite_in_a_row =
                if finite { 0 } else { progress.infinite_in_a_row.saturating_add(1) };
        }
        match &numbers.skipped {
            None => progress.skipped_in_a_row = 0,
            Some(reason) => {
                progress.skipped = progress.skipped.saturating_add(1);
                progress.skipped_in_a_row = progress.skipped_in_a_row.saturating_add(1);
                if progress.skipped_in_a_row >= MOST_SKIPS {
                    return Err(progress.only_skips(reason));
                }
            }
        }
        if progress.infinite_in_a_row >= MOST_SKIPS {
            let (updates, first) = (progress.infinite_in_a_row, progress.infinite_first);
            return Err(TrainError::Diverged { updates, first });
        }
        numbers.skipped_steps = progress.skipped;
        numbers.tokens_per_second = numbers.tokens as f64 / numbers.seconds.max(f64::MIN_POSITIVE);
        self.peak_bytes = self.peak_bytes.max(numbers.peak_bytes);
        numbers.peak_bytes = self.peak_bytes;
        self.activation_bytes = self.activation_bytes.max(numbers.activation_bytes);
        self.tokens += numbers.tokens;
        self.step_seconds.push(numbers.seconds);
        if numbers.skipped.is_none() {
            self.progress.add_loss(numbers.loss, numbers.items);
        }
        self.last = numbers.clone();
        Ok(())
    }

    /// Refuses the weights of a run that came to its end while it diverged.
    ///
    /// # Errors
    ///
    /// [`TrainError::NotFinite`]: the last validation loss is not a number. [`TrainError::OnlySkips`]: the gradients of
    /// the last windows, or of all, were not finite. A few such windows may be an overflow, or a bad sample.
    pub fn require_finite(&self) -> Result<(), TrainError> {
        let progress = &self.progress;
        if let Some(EvaluationNumbers { step, loss, .. }) = progress.validation
            && !loss.is_finite()
        {
            return Err(TrainError::NotFinite { step, loss });
        }
        let reason =
            self.last.skipped.as_ref().filter(|reason| **reason == SkipReason::NonFinite.to_string());
        match reason {
            Some(reason) if self.last.step == 0 || progress.skipped_in_a_row >= MANY_INFINITE => {
                Err(progress.only_skips(reason))
            }
            _ => Ok(()),
        }
    }
}
