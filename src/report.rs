//! A run in numbers.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::accounting::ParameterBytes;
use crate::history::History;
use crate::output::Output;
use crate::rank_report::RankReport;
use crate::writes::FailedWrites;
use crate::{Scores, TrainError};

/// A finished run in numbers: what `--report json` prints as its last line. The names are a stable
/// interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Updates made.
    pub steps: u64,
    /// Mean loss over the supervised items of the last 100 windows, or of all where they are fewer,
    /// each as it was before its update.
    pub train_loss: f64,
    /// Mean loss over the supervised items of the validation data, at the last evaluation.
    pub valid_loss: Option<f64>,
    /// What the model says of itself besides, at the last evaluation.
    #[serde(skip_serializing_if = "Scores::is_empty")]
    pub valid_scores: Scores,
    /// The validation loss of the best evaluation: the lowest, unless another number
    /// [decides](crate::Trainer::best_by).
    pub best_valid_loss: Option<f64>,
    /// The scores of the best evaluation.
    #[serde(skip_serializing_if = "Scores::is_empty")]
    pub best_valid_scores: Scores,
    /// The updates made when it was measured.
    pub best_step: Option<u64>,
    /// Tokens over the seconds of all steps, evaluation not counted.
    pub tokens_per_second: f64,
    /// Median over all steps.
    pub step_seconds_median: f64,
    /// Windows that made no update.
    pub skipped_steps: u64,
    /// L2 norm of all gradients in the last step, before clipping.
    pub gradient_norm: f64,
    /// The last window's loss scale, where the loss is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Number of parameters, a tied one counted once.
    pub parameters: usize,
    /// Bytes of the parameters that the optimizer updates.
    pub master_bytes: usize,
    /// Bytes of the parameters that the forward pass reads, beyond the master's. Where the master is a
    /// part of these, they are counted here and not there.
    pub replica_bytes: usize,
    /// Bytes of the average of the parameters, where there is one.
    #[serde(skip_serializing_if = "is_zero")]
    pub averaged_bytes: usize,
    /// The most bytes that gradients took at the end of a backward pass, in the dtype that it leaves
    /// them in; or, where micro-batches are accumulated, that were held of them between two.
    pub gradient_bytes: usize,
    /// Bytes of the optimizer's state.
    pub optimizer_bytes: usize,
    /// Bytes of all these that wait in the host's memory, where some do.
    #[serde(skip_serializing_if = "is_zero")]
    pub host_bytes: usize,
    /// The most bytes that a forward and backward pass of any step had in use beyond those in use
    /// before it and beyond the parameters' gradients of recomputed segments, 0 where nothing counts
    /// them.
    pub activation_bytes: usize,
    /// The most bytes in use in any step, 0 where nothing counts them.
    pub peak_bytes: usize,
    /// From the start of the process to this report.
    pub wall_seconds: f64,
    /// From the start of the process to the end of the first step.
    pub first_step_seconds: f64,
    /// Why the run ended before its time, if it did.
    pub stopped: Option<String>,
    /// The updates after which the newest checkpoint was saved, where one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<u64>,
    /// Why the last save failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
    /// The files that could not be written at some time, as on a full disk. The run went on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_writes: Vec<FailedWrites>,
    /// Whether the run was told to end before its time, by a signal, a key or its
    /// [interrupter](crate::Trainer::interrupter).
    #[serde(skip_serializing_if = "is_false")]
    pub interrupted: bool,
    /// Each rank, where there are several. The bytes above are those of the first.
    #[serde(skip_serializing_if = "Vec::is_empty", skip_deserializing)]
    pub ranks: Vec<RankReport>,
}

impl Report {
    pub(crate) fn new(history: &History, bytes: ParameterBytes, ranks: Vec<RankReport>) -> Self {
        let progress = &history.progress;
        let seconds: f64 = history.step_seconds.iter().sum();
        let first = history.first_step.map(|at| at.duration_since(process_start()));
        Self {
            steps: history.last.step,
            train_loss: progress.recent_loss(),
            valid_loss: progress.validation.as_ref().map(|valid| valid.loss),
            valid_scores: progress.validation.as_ref().map(|valid| valid.scores.clone()).unwrap_or_default(),
            best_valid_loss: progress.best.as_ref().map(|best| best.loss),
            best_valid_scores: progress.best.as_ref().map(|best| best.scores.clone()).unwrap_or_default(),
            best_step: progress.best.as_ref().map(|best| best.step),
            tokens_per_second: history.tokens as f64 / seconds.max(f64::MIN_POSITIVE),
            step_seconds_median: median(&history.step_seconds),
            skipped_steps: progress.skipped,
            gradient_norm: history.last.gradient_norm,
            loss_scale: history.last.loss_scale,
            parameters: bytes.parameters,
            master_bytes: bytes.master,
            replica_bytes: bytes.replica,
            averaged_bytes: bytes.averaged,
            host_bytes: bytes.by_place().0,
            gradient_bytes: bytes.gradients,
            optimizer_bytes: bytes.optimizer,
            activation_bytes: history.activation_bytes,
            peak_bytes: history.peak_bytes,
            wall_seconds: process_start().elapsed().as_secs_f64(),
            first_step_seconds: first.unwrap_or_default().as_secs_f64(),
            stopped: history.stopped.clone(),
            checkpoint_step: history.saved_step,
            checkpoint_error: history.save_error.clone(),
            failed_writes: history.failed_writes.clone(),
            interrupted: history.interrupted,
            ranks,
        }
    }
}

/// Its file in the output folder.
const FILE: &str = "report.json";

impl Report {
    /// Writes it into a run's folder.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn write(&self, output: &Output) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        output.save_text(FILE, &(text + "\n"))
    }

    /// That of a run which has ended in this folder, but for its ranks; `None` where there is none, or a number of it is
    /// not finite.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(folder.join(FILE)).ok()?).ok()
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// What is nothing is left out.
fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

/// When the process started: the first call. A program makes it first of all; `fit` makes it at the
/// latest.
pub fn process_start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// The middle value, or the mean of the two middle ones; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n.is_multiple_of(2) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
