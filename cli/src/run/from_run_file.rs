//! What can be read from a run file.

use std::sync::Arc;

use firebrick_tasks::problem::Problem;
use serde::de::DeserializeOwned;

use super::Registries;

/// What can be read from a run file: the run, or a part of it.
pub(super) trait FromRunFile: DeserializeOwned {
    /// Returns the first value that parses but is invalid.
    fn first_problem(&self) -> Option<Problem>;

    /// Returns the names that the schedule's highest rate may have.
    fn rate_settings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Moves what has a field of its own to where the program reads it, and keeps the registries that the file was read
    /// with, if they are needed later.
    fn settle(&mut self, registries: &Arc<Registries>) {
        let _ = registries;
    }

    /// Shortens the schedule to the run's `steps`, which an override has set, and returns lines that say so.
    fn fit_schedule(&mut self) -> Vec<String> {
        Vec::new()
    }
}
