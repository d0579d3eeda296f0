//! The fields of a file, each with its outcome.

use serde_json::Value as Json;

use super::json::{self, Field, shortened};
use super::{ImportError, Outcome, Row, toml};

/// A file's fields.
#[derive(Debug)]
pub(super) struct Source {
    file: String,
    pub fields: Vec<Field>,
}

/// The value of a field in a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Setting<T> {
    /// The field is missing or null.
    Missing,
    /// Transformers' Trainer fills in the value.
    Auto,
    Is(T),
}

impl<T> Setting<T> {
    pub fn map<U>(self, then: impl FnOnce(T) -> U) -> Setting<U> {
        match self {
            Self::Missing => Setting::Missing,
            Self::Auto => Setting::Auto,
            Self::Is(value) => Setting::Is(then(value)),
        }
    }
}

impl<T> Setting<T> {
    /// Returns the value, or a default if the file has none.
    pub fn or(self, default: impl Into<T>) -> T {
        match self {
            Self::Is(value) => value,
            Self::Missing | Self::Auto => default.into(),
        }
    }
}

impl Source {
    /// Reads JSON, or TOML if the file's name ends in `.toml`.
    pub fn parse(file: &str, text: &str) -> Result<Self, ImportError> {
        let fields =
            if file.ends_with(".toml") { toml::fields(file, text) } else { json::fields(file, text) };
        Ok(Self { file: file.into(), fields: fields? })
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the field, unless it is null.
    pub fn get(&self, path: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.path == path && field.value != Json::Null)
    }

    /// Whether there is a field below this path.
    pub fn has_below(&self, path: &str) -> bool {
        self.fields.iter().any(|field| is_below(&field.path, path))
    }

    /// Records the outcome of a field, if the field exists and has none yet.
    pub fn settle(&mut self, path: &str, outcome: Outcome) {
        let mut fields = self.fields.iter_mut();
        if let Some(field) = fields.find(|field| field.path == path && field.value != Json::Null) {
            field.outcome.get_or_insert(outcome);
        }
    }

    /// Replaces the outcome of a field.
    pub fn correct(&mut self, path: &str, outcome: Outcome) {
        if let Some(field) =
            self.fields.iter_mut().find(|field| field.path == path && field.outcome.is_some())
        {
            field.outcome = Some(outcome);
        }
    }

    /// Records the same outcome for all fields below a path that have none yet.
    pub fn settle_below(&mut self, path: &str, outcome: &Outcome) {
        let fields = self.fields.iter_mut().filter(|field| field.value != Json::Null);
        for field in fields.filter(|field| is_below(&field.path, path)) {
            field.outcome.get_or_insert_with(|| outcome.clone());
        }
    }

    /// Reads a number within a range, which `expected` describes.
    pub fn number(
        &self,
        path: &str,
        expected: &str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<Setting<f64>, ImportError> {
        self.read(path, expected, |value| {
            value.as_f64().filter(|number| number.is_finite() && holds(*number))
        })
    }

    /// Reads an integer within a range, also in a form like `5e8`.
    pub fn count(&self, path: &str, least: u64, most: u64) -> Result<Setting<u64>, ImportError> {
        let expected = format!("a whole number from {least} to {most}");
        self.read(path, &expected, |value| whole(value).filter(|count| (least..=most).contains(count)))
    }

    pub fn flag(&self, path: &str) -> Result<Setting<bool>, ImportError> {
        self.read(path, "true or false", Json::as_bool)
    }

    pub fn text(&self, path: &str) -> Result<Setting<String>, ImportError> {
        self.read(path, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// Reads one of several texts, and returns what stands for it here.
    pub fn choice<T: Copy>(&self, path: &str, known: &[(&str, T)]) -> Result<Setting<T>, ImportError> {
        let names: Vec<_> = known.iter().map(|(name, _)| format!("{name:?}")).collect();
        let expected = match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => names.concat(),
        };
        self.read(path, &expected, |value| {
            let found = known.iter().find(|(name, _)| value == name);
            found.map(|(_, here)| *here)
        })
    }

    /// Reads the value that `pick` extracts.
    pub fn read<T>(
        &self,
        path: &str,
        expected: &str,
        pick: impl Fn(&Json) -> Option<T>,
    ) -> Result<Setting<T>, ImportError> {
        let Some(field) = self.get(path) else { return Ok(Setting::Missing) };
        match pick(&field.value) {
            Some(value) => Ok(Setting::Is(value)),
            None if field.value == "auto" => Ok(Setting::Auto),
            None => Err(self.wrong(path, expected)),
        }
    }

    /// Takes over a value that Trainer does not fill in, and reports it as `to`; `None` if the field is missing.
    ///
    /// # Errors
    ///
    /// The value is "auto".
    pub fn taken<T>(
        &mut self,
        path: &str,
        given: Setting<T>,
        to: impl Fn(&T) -> String,
    ) -> Result<Option<T>, ImportError> {
        match given {
            Setting::Missing => Ok(None),
            Setting::Auto => Err(self.wrong(path, "a value: Trainer fills in none")),
            Setting::Is(value) => {
                self.settle(path, Outcome::Taken(to(&value)));
                Ok(Some(value))
            }
        }
    }

    /// Returns all fields with their outcomes. A field without an outcome counts as unknown.
    pub fn rows(&self) -> Vec<Row> {
        let row = |field: &Field| Row {
            file: self.file.clone(),
            line: field.line,
            path: field.path.clone(),
            value: field.value.to_string(),
            outcome: field.outcome.clone().unwrap_or(Outcome::Unknown(None)),
        };
        self.fields.iter().map(row).collect()
    }

    /// Returns the error for a field with an invalid value.
    pub fn wrong(&self, path: &str, expected: &str) -> ImportError {
        let (line, found) = match self.get(path) {
            Some(field) => (field.line, shortened(&field.value.to_string(), 40)),
            None => (1, "nothing".into()),
        };
        ImportError::Value {
            file: self.file.clone(),
            line,
            field: path.into(),
            expected: expected.into(),
            found,
        }
    }
}

/// Returns a non-negative number without a fraction.
pub(super) fn whole(value: &Json) -> Option<u64> {
    let exact = |number: &f64| number.fract() == 0.0 && (0.0..=2f64.powi(53)).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(exact).map(|number| number as u64))
}

pub(super) fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        Source::parse(
            "ds.json",
            "{\"a\": {\"b\": 5e8, \"c\": \"auto\", \"d\": null},\n \"e\": [1, {\"f\": 2}], \"g\": {}, \"h\": 1.5}",
        )
        .unwrap()
    }

    #[test]
    fn an_object_with_fields_is_no_field() {
        let paths: Vec<_> = source().fields.into_iter().map(|field| field.path).collect();
        assert_eq!(paths, ["a.b", "a.c", "a.d", "e", "g", "h"]);
    }

    #[test]
    fn numbers_are_read_as_python_writes_them() {
        let source = source();
        assert_eq!(source.count("a.b", 1, 1_000_000_000), Ok(Setting::Is(500_000_000)));
        assert_eq!(source.count("a.c", 1, 9), Ok(Setting::Auto));
        assert_eq!(
            [source.count("a.d", 1, 9), source.count("x", 1, 9)],
            [Ok(Setting::Missing), Ok(Setting::Missing)]
        );
        let said = |path| source.count(path, 1, 9).unwrap_err().to_string();
        assert_eq!(said("h"), "ds.json:2: `h` must be a whole number from 1 to 9, found 1.5");
        assert_eq!(said("a.b"), "ds.json:1: `a.b` must be a whole number from 1 to 9, found 500000000.0");
        assert_eq!(said("e"), "ds.json:2: `e` must be a whole number from 1 to 9, found [1,{\"f\":2}]");
    }

    #[test]
    fn the_first_outcome_stays() {
        let mut source = source();
        source.settle("a.b", Outcome::taken("1"));
        source.settle_below("a", &Outcome::no_effect("2"));
        source.settle("a.c", Outcome::taken("3"));
        let said: Vec<_> = source.fields.into_iter().map(|field| field.outcome).collect();
        assert_eq!(said[..3], [Some(Outcome::taken("1")), Some(Outcome::no_effect("2")), None]);
    }

    #[test]
    fn a_file_is_an_object_and_long_values_are_cut() {
        let error = Source::parse("ds.json", "[1]").unwrap_err().to_string();
        assert_eq!(error, "ds.json:1: `the whole file` must be an object, `{..}`, found [1]");
        assert_eq!(shortened(&"é".repeat(41), 40), "é".repeat(40) + "...");
        assert_eq!(shortened("\u{9b}31m", 40), "\\u{9b}31m");
    }
}
