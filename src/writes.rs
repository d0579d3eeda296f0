//! How the writing of a run's files goes.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::console::tell;

/// A file of a run that could not be written at some time. The run goes on, and tries it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailedWrites {
    /// Its name in the output folder, or that of its folder there.
    pub file: String,
    /// Attempts that failed.
    pub failures: u64,
    /// Why the last attempt failed, and the file is not what it should be. Without, all of it was written in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Counts the attempts to write a file that fail.
#[derive(Clone, Debug)]
pub(crate) struct Writes {
    name: &'static str,
    /// Whether what changes is told on standard error.
    tells: bool,
    failures: u64,
    error: Option<String>,
}

impl Writes {
    pub fn of(name: &'static str, tells: bool) -> Self {
        Self { name, tells, failures: 0, error: None }
    }

    /// Notes how an attempt went. The first that fails is told, and the first that does not fail any more.
    pub fn note<E: Display>(&mut self, attempt: Result<(), E>) {
        let failed = attempt.err().map(|error| error.to_string());
        self.failures += u64::from(failed.is_some());
        let name = self.name;
        match (&self.error, &failed) {
            (None, Some(error)) if self.tells => {
                tell(&format!("{name} cannot be written; training goes on, and it is tried again: {error}"));
            }
            (Some(_), None) if self.tells => {
                tell(&format!(
                    "{name} is written again, after {} attempts: nothing is missing",
                    self.failures
                ));
            }
            _ => {}
        }
        self.error = failed;
    }

    /// What a report says of the file, if an attempt has failed.
    pub fn failed(&self) -> Option<FailedWrites> {
        let (file, failures) = (self.name.to_string(), self.failures);
        (failures > 0).then(|| FailedWrites { file, failures, error: self.error.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_and_what_was_made_up_for_is_no_error() {
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
