//! The first invalid value of a run file.

use firebrick_strategies::SettingError;
use serde::de::DeserializeOwned;

/// An invalid value, and what it should be.
pub(super) struct Problem {
    pub field: String,
    pub expected: String,
    pub found: String,
}

impl Problem {
    /// Returns the problem of a setting at `place`, of the recipe at `recipe`.
    pub fn of_setting(place: &str, recipe: &str, error: &SettingError) -> Self {
        let field =
            if error.setting.is_empty() { place.into() } else { format!("{place}.{}", error.setting) };
        Self { field, expected: error.expected_at(recipe), found: error.found.clone() }
    }
}

/// Returns a problem unless `holds`.
pub(super) fn require(holds: bool, field: &str, expected: &str, found: impl ToString) -> Option<Problem> {
    (!holds).then(|| Problem { field: field.into(), expected: expected.into(), found: found.to_string() })
}

/// What can be read from a run file: the run, or a part of it.
pub(super) trait FromRunFile: DeserializeOwned {
    /// Returns the first value that parses but is invalid.
    fn first_problem(&self) -> Option<Problem>;

    /// Returns the names that the schedule's highest rate may have.
    fn rate_settings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Shortens the schedule to the run's `steps`, which an override has set, and returns lines that say so.
    fn fit_schedule(&mut self) -> Vec<String> {
        Vec::new()
    }
}
