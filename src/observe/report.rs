//! The report of a run.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Scores;
use crate::accounting::DiskBytes;
use crate::files::writes::FailedWrites;
use crate::observe::rank_report::RankReport;

/// The numbers of a finished run, which `--report json` prints as its last line. The field names are a stable
/// interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Updates made.
    pub steps: u64,
    /// Mean loss over the supervised items of the last 100 updates, or of all if there are fewer, each measured before
    /// its update.
    pub train_loss: f64,
    /// Mean loss over the supervised items of the validation data at the last evaluation.
    pub valid_loss: Option<f64>,
    /// The model's scores at the last evaluation.
    #[serde(skip_serializing_if = "Scores::is_empty")]
    pub valid_scores: Scores,
    /// The validation loss of the best evaluation, which is the one with the lowest loss unless [another
    /// number](crate::Trainer::best_by) selects it.
    pub best_valid_loss: Option<f64>,
    /// The scores of the best evaluation.
    #[serde(skip_serializing_if = "Scores::is_empty")]
    pub best_valid_scores: Scores,
    /// Updates made before the best evaluation.
    pub best_step: Option<u64>,
    /// Tokens over the seconds of all steps, without evaluation.
    pub tokens_per_second: f64,
    /// [`tokens_per_second`](Self::tokens_per_second) over the number of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_per_device: Option<f64>,
    /// [Model FLOPs utilization](crate::Utilization) over all steps, as a share of 1, if the peak of the devices is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Median seconds over all steps.
    pub step_seconds_median: f64,
    /// Steps that made no update.
    pub skipped_steps: u64,
    /// L2 norm of all gradients in the last step, before clipping.
    pub gradient_norm: f64,
    /// The loss scale of the last step, if the loss is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Number of parameters. A tied parameter counts once.
    pub parameters: usize,
    /// Bytes of the parameters that the optimizer updates.
    pub master_bytes: usize,
    /// Bytes of the parameters that the forward pass reads, on top of the master's. If the master is a part of these,
    /// its bytes count here and not there.
    pub replica_bytes: usize,
    /// Bytes of the averaged parameters, if there are any.
    #[serde(skip_serializing_if = "is_zero")]
    pub averaged_bytes: usize,
    /// Peak bytes of the gradients: at the end of a backward pass, in the dtype in which it leaves them, or held
    /// between two accumulated micro-batches.
    pub gradient_bytes: usize,
    /// Bytes of the optimizer's state, unless a disk keeps it.
    pub optimizer_bytes: usize,
    /// Bytes of the optimizer's state and of parameters on a disk, and of the file that keeps them, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskBytes>,
    /// Bytes of all these that are offloaded to the host's memory.
    #[serde(skip_serializing_if = "is_zero")]
    pub host_bytes: usize,
    /// Peak bytes that the forward and backward pass of any step used on top of the bytes in use before it, without the
    /// parameters' gradients of recomputed segments; 0 if nothing counts bytes.
    pub activation_bytes: usize,
    /// Peak bytes in use in any step; 0 if nothing counts bytes.
    pub peak_bytes: usize,
    /// Seconds from the start of the process to this report.
    pub wall_seconds: f64,
    /// Seconds from the start of the process to the end of the first step.
    pub first_step_seconds: f64,
    /// Why the run ended early, if it did.
    pub stopped: Option<String>,
    /// The update of the newest checkpoint, if one was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<u64>,
    /// Why the last save failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
    /// The files with a failed write, as on a full disk. The run continued.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_writes: Vec<FailedWrites>,
    /// The texts of the run's data that were cut to the maximum length, by part of the data; a program fills it in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub truncated: Vec<TruncatedTexts>,
    /// Whether the run was asked to end early, by a signal, a key or its [interrupter](crate::Trainer::interrupter).
    #[serde(skip_serializing_if = "is_false")]
    pub interrupted: bool,
    /// One report per rank, if there are several. The bytes above are those of the first rank.
    #[serde(skip_serializing_if = "Vec::is_empty", skip_deserializing)]
    pub ranks: Vec<RankReport>,
}

/// The texts of a part of the data that were cut to the maximum length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TruncatedTexts {
    /// The part, such as `training`.
    pub data: String,
    /// Number of texts, or pairs of texts, that were cut.
    pub texts: u64,
    /// Number of tokens that were lost.
    pub tokens: u64,
}

/// The file's name in the output folder.
pub(crate) const REPORT: &str = "report.json";

impl Report {
    /// Reads the report of a finished run from its folder, without its ranks. Returns `None` if there is none, or a
    /// number in it is not finite.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(folder.join(REPORT)).ok()?).ok()
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Skips a zero field.
fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

/// Returns when the process started, which is the first call of this function. Call it first in a program; `fit` calls
/// it at the latest.
pub fn process_start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Returns the middle value, or the mean of the two middle ones; 0 for an empty slice.
pub fn median(values: &[f64]) -> f64 {
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
