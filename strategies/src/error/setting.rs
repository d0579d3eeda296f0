//! The error for a setting that is out of range.

use std::borrow::Cow;
use std::fmt::Display;

use thiserror::Error;

/// A setting of a recipe is out of range, or contradicts another one.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{}must be {expected}, found {found}", place(setting))]
pub struct SettingError {
    /// The name of the setting; empty for a recipe that has only one value, as in `Accumulate(4)`.
    pub setting: &'static str,
    /// The allowed values. Other settings of the recipe stand in backticks, as in "0 where `momentum` is".
    pub expected: Cow<'static, str>,
    /// The given value.
    pub found: String,
}

/// Writes the name of a setting.
fn place(setting: &str) -> String {
    match setting {
        "" => String::new(),
        name => format!("`{name}` "),
    }
}

impl SettingError {
    /// Returns an error unless `holds`.
    ///
    /// # Errors
    ///
    /// The setting is not as expected.
    ///
    /// ```
    /// use firebrick_strategies::SettingError;
    ///
    /// let error = SettingError::require(false, "epsilon", "above 0", -1.0).unwrap_err();
    /// assert_eq!(error.to_string(), "`epsilon` must be above 0, found -1");
    /// ```
    pub fn require(
        holds: bool,
        setting: &'static str,
        expected: impl Into<Cow<'static, str>>,
        found: impl Display,
    ) -> Result<(), Self> {
        if holds {
            Ok(())
        } else {
            Err(Self { setting, expected: expected.into(), found: found.to_string() })
        }
    }

    /// Returns the allowed values with the paths of the settings in backticks, for a recipe at `path` of a file: "0
    /// where `optimizer.momentum` is".
    pub fn expected_at(&self, path: &str) -> String {
        let pieces = self.expected.split('`').enumerate();
        let placed = pieces.map(|(index, piece)| match index % 2 {
            0 => piece.to_string(),
            _ => format!("`{path}.{piece}`"),
        });
        placed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_backticks_get_the_path() {
        let error = SettingError::require(false, "dampening", "0 where `momentum` is", 0.5).unwrap_err();
        assert_eq!(error.expected_at("optimizer"), "0 where `optimizer.momentum` is");
        assert_eq!(error.to_string(), "`dampening` must be 0 where `momentum` is, found 0.5");
    }
}
