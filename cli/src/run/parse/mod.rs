//! Parses a run file and its overrides into a checked run.
//!
//! ```text
//! mod.rs     reads the file and applies the overrides
//! reason.rs  says what is wrong with a text that is not a run, and what to write instead
//! ```

mod reason;

use std::path::Path;

use ron::error::SpannedError;

use super::check;
use super::extensions::extensions;
use super::problem::FromRunFile;
use super::{DataRun, Run, RunError, ron_path};
use reason::quoting_hint;

/// A run file is small; anything larger is a different file, named by mistake.
const MOST_BYTES: u64 = 1 << 20;

impl DataRun {
    /// Reads the data part of a run file; [`Run::read`] reads the whole.
    ///
    /// # Errors
    ///
    /// Those of [`Run::read`] that concern the data.
    pub fn read(path: &Path, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        read(path, overrides)
    }

    /// Like [`read`](Self::read), but parses the given text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn parse(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        parse(file, text, overrides)
    }
}

impl Run {
    /// Reads a run file and applies overrides of the form `path=value`, whose values are RON.
    ///
    /// # Errors
    ///
    /// The error names what is wrong, the file, the line, the nearest known name, and what is expected there.
    pub fn read(path: &Path, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        read(path, overrides)
    }

    /// Like [`read`](Self::read), but parses the given text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn parse(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        parse(file, text, overrides)
    }

    /// Writes the run as RON, with every field.
    pub fn to_ron(&self) -> String {
        let pretty = ron::ser::PrettyConfig::new().extensions(extensions());
        // A struct of numbers, strings and lists can always be written.
        ron::ser::to_string_pretty(self, pretty).unwrap_or_default()
    }
}

fn read<T: FromRunFile>(path: &Path, overrides: &[impl AsRef<str>]) -> Result<T, RunError> {
    let failed = |reason: String| RunError::Read { path: path.into(), reason };
    let about = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(failed(format!("expected a text file of at most {MOST_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let text = text.trim_start_matches('\u{feff}');
    parse(&path.display().to_string(), text, overrides)
}

fn parse<T: FromRunFile>(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<T, RunError> {
    let mut text = text.to_string();
    let mut run: Result<T, _> = parse_text(file, &text);
    for set in overrides {
        let set = set.as_ref();
        let failed = |reason: String| RunError::Set { set: set.into(), reason };
        let changed = apply(&text, set).map_err(|reason| {
            // A file that is malformed by itself is the file's error, not the override's.
            match &run {
                Err(RunError::Syntax { .. }) if reason.starts_with("line") => None,
                _ => Some(failed(reason)),
            }
        });
        text = match changed {
            Ok(changed) => changed,
            Err(Some(error)) => return Err(error),
            Err(None) => return run,
        };
        let before = std::mem::replace(&mut run, parse_text(file, &text));
        if let (Ok(_), Err(RunError::Syntax { reason, .. })) = (before, &run) {
            let value = set.split_once('=').map_or("", |(_, value)| value);
            // A reason of ours says what to write, if a name is wrong.
            let is_of_name =
                ["unknown name", "the field", "expected "].iter().any(|start| reason.starts_with(start));
            let hint = if is_of_name { String::new() } else { quoting_hint(set, value) };
            return Err(failed(format!("{reason}{hint}")));
        }
    }
    let run = run?;
    match check::check(&run, file, &text) {
        Err(RunError::Value { field, expected, found, .. }) if set_by(overrides, &field).is_some() => {
            let set = set_by(overrides, &field).unwrap_or_default();
            Err(RunError::Set { set, reason: format!("`{field}` must be {expected}, found {found}") })
        }
        checked => checked.map(|()| run),
    }
}

/// Returns the override that set this field or a value that contains it.
fn set_by(overrides: &[impl AsRef<str>], field: &str) -> Option<String> {
    let part_of =
        |path: &str| field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let mut sets = overrides.iter().rev().map(AsRef::as_ref);
    let set = sets.find(|set| set.split_once('=').is_some_and(|(path, _)| part_of(path.trim())))?;
    Some(set.into())
}

fn apply(text: &str, set: &str) -> Result<String, String> {
    let Some((path, value)) = set.split_once('=') else {
        return Err("expected path=value, as in `batch.micro=4`".into());
    };
    ron_path::set(text, path.trim(), value).map_err(|error| format!("{error}{}", quoting_hint(set, value)))
}

/// Parses a text. A name that lacks its parentheses counts as one with defaults: `optimizer: AdamW` is `AdamW()`.
fn parse_text<T: FromRunFile>(file: &str, text: &str) -> Result<T, RunError> {
    let mut text = text.to_string();
    loop {
        let error = match from_ron(&text) {
            Ok(run) => return Ok(run),
            Err(error) => error,
        };
        match reason::bare_name(&error, &text) {
            Some(end) => text.insert_str(end, "()"),
            None => {
                let (line, reason) = reason::of(&error, &text, &|text| from_ron::<T>(text).err());
                return Err(RunError::Syntax { file: file.into(), line, reason });
            }
        }
    }
}

fn from_ron<T: FromRunFile>(text: &str) -> Result<T, SpannedError> {
    ron::Options::default().with_default_extension(extensions()).from_str(text)
}
