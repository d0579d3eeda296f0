//! `report.json` of a completed run, as its page reads it.

use std::collections::BTreeMap;

use serde::Deserialize;

use firebrick::FailedWrites;

/// A run's [`Report`](firebrick::Report). A missing field, as in a report of another version, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Finished {
    pub steps: u64,
    pub train_loss: Option<f64>,
    pub valid_loss: Option<f64>,
    pub valid_scores: BTreeMap<String, Option<f64>>,
    pub best_valid_loss: Option<f64>,
    pub best_valid_scores: BTreeMap<String, Option<f64>>,
    pub best_step: Option<u64>,
    pub tokens_per_second: Option<f64>,
    pub tokens_per_second_per_device: Option<f64>,
    pub mfu: Option<f64>,
    pub step_seconds_median: Option<f64>,
    pub skipped_steps: Option<u64>,
    pub parameters: Option<f64>,
    pub master_bytes: Option<f64>,
    pub replica_bytes: Option<f64>,
    pub averaged_bytes: Option<f64>,
    pub gradient_bytes: Option<f64>,
    pub optimizer_bytes: Option<f64>,
    pub host_bytes: Option<f64>,
    pub disk: Option<Disk>,
    pub activation_bytes: Option<f64>,
    pub peak_bytes: Option<f64>,
    pub wall_seconds: Option<f64>,
    pub first_step_seconds: Option<f64>,
    pub stopped: Option<String>,
    pub checkpoint_step: Option<u64>,
    pub checkpoint_error: Option<String>,
    pub failed_writes: Vec<FailedWrites>,
    pub ranks: Vec<Rank>,
}

/// The optimizer's state, and parameters, [on a disk](firebrick::DiskBytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Disk {
    pub state_bytes: Option<f64>,
    pub parameter_bytes: Option<f64>,
}

/// A rank's [`RankReport`](firebrick::RankReport).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Rank {
    pub rank: u64,
    pub master_bytes: Option<f64>,
    pub replica_bytes: Option<f64>,
    pub gradient_bytes: Option<f64>,
    pub optimizer_bytes: Option<f64>,
    pub peak_bytes: Option<f64>,
    pub per_step: BTreeMap<String, Moved>,
    pub awaited_seconds: Option<f64>,
}

/// The average traffic of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Moved {
    pub sent_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
}

impl Finished {
    /// Parses a report.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_any_version_is_read() {
        let report = Finished::parse(
            r#"{"steps":3,"train_loss":null,"new":{},"valid_scores":{"f1":null},"failed_writes":[{"file":"log"}],
                "ranks":[{"rank":1,"per_step":{"all_gather":{"sent_bytes":5.0}}}]}"#,
        )
        .unwrap();
        assert_eq!((report.steps, report.train_loss, report.valid_scores["f1"]), (3, None, None));
        assert_eq!(report.failed_writes[0].failures, 0);
        assert_eq!(report.ranks[0].per_step["all_gather"].sent_bytes, Some(5.0));
        assert_eq!(Finished::parse("{\"steps\":3"), None);
    }
}
