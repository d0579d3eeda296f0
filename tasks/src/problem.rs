//! The first invalid value of a run file, or of what a program sets.

use firebrick_strategies::SettingError;
use thiserror::Error;

/// An invalid value, and what it should be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{field}` must be {expected}, found {found}")]
pub struct Problem {
    /// The path of the field, as in a run file.
    pub field: String,
    /// What the field may be.
    pub expected: String,
    /// What the field is.
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

/// The problem of a setting that stands by itself in a run file.
impl From<SettingError> for Problem {
    fn from(SettingError { setting, expected, found }: SettingError) -> Self {
        Self { field: setting.into(), expected: expected.into(), found }
    }
}

/// Returns a problem unless `holds`.
pub fn require(holds: bool, field: &str, expected: &str, found: impl ToString) -> Option<Problem> {
    (!holds).then(|| Problem { field: field.into(), expected: expected.into(), found: found.to_string() })
}

/// A size far above any use, so that a typo is reported instead of tried.
const MOST: usize = 1_000_000_000;

/// Returns a problem unless the value is a possible number of something.
pub fn positive(field: &str, value: usize) -> Option<Problem> {
    require((1..=MOST).contains(&value), field, "at least 1 and at most a billion", value)
}
