//! Records failed writes of a run's files.

use std::fmt::Display;

use firebrick_datasets::counted;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

/// A file of a run with a failed write. The run continues and retries it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailedWrites {
    /// The file's name in the output folder, or that of its folder there.
    pub file: String,
    /// Number of failed attempts.
    pub failures: u64,
    /// The error of the last attempt, if the file is incomplete. `None` if a later attempt wrote everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Counts the failed attempts to write a file.
#[derive(Clone, Debug)]
pub(crate) struct Writes {
    name: &'static str,
    /// Whether to report changes on standard error.
    tells: bool,
    failures: u64,
    error: Option<String>,
}

impl Writes {
    pub fn of(name: &'static str, tells: bool) -> Self {
        Self { name, tells, failures: 0, error: None }
    }

    /// Records the outcome of an attempt. Reports the first failure, and the first success after it.
    pub fn note<E: Display>(&mut self, attempt: Result<(), E>) {
        let failed = attempt.err().map(|error| error.to_string());
        self.failures += u64::from(failed.is_some());
        let name = self.name;
        match (&self.error, &failed) {
            (None, Some(error)) if self.tells => {
                warn!("{name} cannot be written; training continues and tries again: {error}");
            }
            (Some(_), None) if self.tells => {
                let failures = counted(self.failures, "failed attempt");
                info!("{name} is written again, after {failures}: nothing is missing");
            }
            _ => {}
        }
        self.error = failed;
    }

    /// Returns the file's entry in the report, if an attempt failed.
    pub fn failed(&self) -> Option<FailedWrites> {
        let (file, failures) = (self.name.to_string(), self.failures);
        (failures > 0).then(|| FailedWrites { file, failures, error: self.error.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_succeeds_later_is_no_error() {
        let mut writes = Writes::of("metrics.jsonl", false);
        writes.note(Ok::<_, &str>(()));
        assert_eq!(writes.failed(), None);
        writes.note(Err("the disk is full"));
        writes.note(Err("the disk is quite full"));
        let found = writes.failed().unwrap();
        assert_eq!((found.failures, found.error.as_deref()), (2, Some("the disk is quite full")));
        writes.note(Ok::<_, &str>(()));
        let found = writes.failed().unwrap();
        assert_eq!((found.failures, found.error), (2, None));
    }
}
