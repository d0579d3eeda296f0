//! When a run saves checkpoints, in a run file.

use serde::{Deserialize, Serialize};

use firebrick::Checkpoints;

/// When the run saves a checkpoint to resume from: `checkpoints: (every: 500, keep_last: 3)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointsConfig {
    /// Updates between two checkpoints; the run then also saves at its end. Default: the run saves only when it is
    /// interrupted.
    pub every: Option<u64>,
    /// Number of newest checkpoints to keep. Default: 2.
    pub keep_last: usize,
    /// Number of checkpoints with the best evaluation of their own weights to keep as well, by [`Run::best_by`](super::Run::best_by).
    /// Default: 0.
    pub keep_best: usize,
    /// Also keeps every checkpoint whose step is a multiple of this. Default: none.
    pub keep_every: Option<u64>,
    /// How often a failed save is retried, at the next step boundaries. Default: 2.
    pub retries: u32,
    /// Seconds that an interrupted run has for its last step and its save; after that it ends without saving. Default:
    /// no limit.
    pub grace: Option<u64>,
}

impl Default for CheckpointsConfig {
    fn default() -> Self {
        Self { every: None, keep_last: 2, keep_best: 0, keep_every: None, retries: 2, grace: None }
    }
}

impl CheckpointsConfig {
    pub(super) fn policy(&self) -> Checkpoints {
        let policy = match self.every {
            Some(updates) => Checkpoints::every(updates),
            None => Checkpoints::when_stopped(),
        };
        let policy = policy.keep_last(self.keep_last).keep_best(self.keep_best).retries(self.retries);
        match self.keep_every {
            Some(updates) => policy.keep_every(updates),
            None => policy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Run, RunError};

    fn config(overrides: &[&str]) -> Result<CheckpointsConfig, RunError> {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        Run::parse("file", file, overrides).map(|run| run.checkpoints)
    }

    #[test]
    fn every_field_reaches_the_policy() {
        let given = config(&[
            "checkpoints=(every: 5, keep_last: 4, keep_best: 3, keep_every: 10, retries: 7, grace: 30)",
        ]);
        let expected = Checkpoints::every(5).keep_last(4).keep_best(3).keep_every(10).retries(7);
        assert_eq!(given.unwrap().policy(), expected);
        assert_eq!(config(&["checkpoints=()"]).unwrap().policy(), Checkpoints::when_stopped());
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_place() {
        for (field, found) in [("every: 0", "every"), ("keep_last: 0", "keep_last"), ("grace: 0", "grace")] {
            let error = config(&[&format!("checkpoints=({field})")]).unwrap_err().to_string();
            assert!(error.contains(&format!("`checkpoints.{found}` must be at least 1")), "{error}");
        }
    }
}
