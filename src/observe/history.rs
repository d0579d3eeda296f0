//! The history of a run so far.

use std::path::PathBuf;
use std::time::Instant;

use firebrick_strategies::SkipReason;

use crate::TrainError;
use crate::accounting::ParameterBytes;
use crate::files::writes::FailedWrites;
use crate::observe::log::Past;
use crate::observe::numbers::{EvaluationNumbers, StepNumbers};
use crate::observe::progress::{MANY_INFINITE, Progress};
use crate::observe::rank_report::{Exchanged, RankReport};
use crate::observe::report::{Report, median, process_start};

/// Skipped updates in a row, or updates in a row with a non-finite loss, after which a run ends with an error.
const MOST_SKIPS: u64 = 100;

/// The history of a run so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The part that checkpoints store.
    pub progress: Progress,
    pub last: StepNumbers,
    pub tokens: usize,
    pub step_seconds: Vec<f64>,
    pub peak_bytes: usize,
    pub activation_bytes: usize,
    /// Path of the weights of the best evaluation.
    pub best_path: Option<PathBuf>,
    /// Whether this process made an update or an evaluation.
    pub has_gone_on: bool,
    /// Updates made at the newest checkpoint.
    pub saved_step: Option<u64>,
    /// Why the last save failed, if it did.
    pub save_error: Option<String>,
    /// The files with a failed write.
    pub failed_writes: Vec<FailedWrites>,
    /// Whether the run was asked to end.
    pub interrupted: bool,
    /// Why the run ended early.
    pub stopped: Option<String>,
    pub first_step: Option<Instant>,
    /// What was exchanged with other ranks, over all steps.
    pub exchanged: Exchanged,
}

impl History {
    /// Rebuilds the history of a resumed run after `updates` updates, from its log.
    pub fn going_on(progress: Progress, updates: u64, past: Past) -> Self {
        let Past { tokens, step_seconds, peak_bytes, activation_bytes, last, .. } = past;
        let last = last.unwrap_or_default();
        let last = StepNumbers {
            step: updates,
            gradient_norm: Some(last.gradient_norm).filter(|norm| norm.is_finite()).unwrap_or_default(),
            loss_scale: last.loss_scale,
            ..StepNumbers::default()
        };
        let progress = progress.going_on(updates);
        Self { last, progress, tokens, step_seconds, peak_bytes, activation_bytes, ..Self::default() }
    }

    /// Returns the path and the step of the best evaluation's weights.
    pub fn found_best(&self) -> Option<(PathBuf, u64)> {
        let step = self.progress.best.as_ref().map(|best| best.step);
        self.best_path.clone().zip(step)
    }

    /// Adds a step, and fills in the numbers that depend on earlier steps. `infinite` is the first of several ranks
    /// with a non-finite part of the loss.
    pub fn add(&mut self, numbers: &mut StepNumbers, infinite: Option<usize>) -> Result<(), TrainError> {
        self.first_step.get_or_insert_with(Instant::now);
        let progress = &mut self.progress;
        let finite = numbers.loss.is_finite();
        if progress.skipped_in_a_row == 0 && progress.infinite_in_a_row == 0 {
            progress.infinite_first = infinite;
        }
        // A window without items has no loss.
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

    /// Refuses the weights of a run that was diverging at its end.
    ///
    /// # Errors
    ///
    /// [`TrainError::NotFinite`] if the last validation loss is not finite. [`TrainError::OnlySkips`] if the gradients
    /// of the last windows, or of all, were not finite. A few such windows may be an overflow or a bad sample.
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

    /// Builds the report of the run.
    pub fn report(&self, bytes: ParameterBytes, ranks: Vec<RankReport>) -> Report {
        let progress = &self.progress;
        let seconds: f64 = self.step_seconds.iter().sum();
        let first = self.first_step.map(|at| at.duration_since(process_start()));
        Report {
            steps: self.last.step,
            train_loss: progress.recent_loss(),
            valid_loss: progress.validation.as_ref().map(|valid| valid.loss),
            valid_scores: progress.validation.as_ref().map(|valid| valid.scores.clone()).unwrap_or_default(),
            best_valid_loss: progress.best.as_ref().map(|best| best.loss),
            best_valid_scores: progress.best.as_ref().map(|best| best.scores.clone()).unwrap_or_default(),
            best_step: progress.best.as_ref().map(|best| best.step),
            tokens_per_second: self.tokens as f64 / seconds.max(f64::MIN_POSITIVE),
            step_seconds_median: median(&self.step_seconds),
            skipped_steps: progress.skipped,
            gradient_norm: self.last.gradient_norm,
            loss_scale: self.last.loss_scale,
            parameters: bytes.parameters,
            master_bytes: bytes.master,
            replica_bytes: bytes.replica,
            averaged_bytes: bytes.averaged,
            host_bytes: bytes.by_place().0,
            gradient_bytes: bytes.gradients,
            optimizer_bytes: bytes.optimizer,
            activation_bytes: self.activation_bytes,
            peak_bytes: self.peak_bytes,
            wall_seconds: process_start().elapsed().as_secs_f64(),
            first_step_seconds: first.unwrap_or_default().as_secs_f64(),
            stopped: self.stopped.clone(),
            checkpoint_step: self.saved_step,
            checkpoint_error: self.save_error.clone(),
            failed_writes: self.failed_writes.clone(),
            interrupted: self.interrupted,
            ranks,
        }
    }
}
