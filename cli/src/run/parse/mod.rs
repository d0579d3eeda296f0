//! Parses a run file and its overrides into a checked run.
//!
//! ```text
//! mod.rs        reads the file and applies the overrides
//! overrides.rs  one override, from `--set` or an option of its own
//! reason.rs     says what is wrong with a text that is not a run, and what to write instead
//! ```

mod overrides;
mod reason;

use std::path::Path;
use std::sync::Arc;

use ron::error::SpannedError;

use super::from_run_file::FromRunFile;
use super::{DataRun, Process, Registries, Run, check, extensions};
use crate::{Caret, RunError};
pub(crate) use overrides::Override;

/// A run file is small; anything larger is a different file, named by mistake.
const MOST_BYTES: u64 = 1 << 20;

impl DataRun {
    /// Reads the data part of a run file; [`Run::read`] reads the whole.
    ///
    /// # Errors
    ///
    /// Those of [`Run::read`] that concern the data.
    pub fn read(path: &Path, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        Self::read_with(Registries::built_in(), path, overrides)
    }

    pub(crate) fn read_with(
        registries: &Arc<Registries>,
        path: &Path,
        overrides: &[impl AsRef<str>],
    ) -> Result<Self, RunError> {
        Ok(read(registries, path, &sets(overrides)?)?.run)
    }

    /// Like [`read`](Self::read), but parses the given text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn parse(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        Ok(parse(Registries::built_in(), file, text, &sets(overrides)?)?.run)
    }
}

impl Run {
    /// Reads a run file and applies overrides of the form `path=value`. Values are RON; a text needs no quotes. If they
    /// set `steps` and leave the schedule's phases, those that do not end within the run are
    /// [shortened](firebrick::Schedule::shortened). [`Program::read`](crate::Program::read) reads one that names techniques
    /// of your own.
    ///
    /// # Errors
    ///
    /// The error names what is wrong, the file, the line, the nearest known name, and what is expected there.
    pub fn read(path: &Path, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        Self::read_with(Registries::built_in(), path, overrides)
    }

    pub(crate) fn read_with(
        registries: &Arc<Registries>,
        path: &Path,
        overrides: &[impl AsRef<str>],
    ) -> Result<Self, RunError> {
        Ok(read(registries, path, &sets(overrides)?)?.told())
    }

    /// Like [`read`](Self::read), with overrides of any option. Does not tell the user what is shortened.
    pub(crate) fn read_overridden(
        registries: &Arc<Registries>,
        path: &Path,
        overrides: &[Override],
    ) -> Result<Overridden<Self>, RunError> {
        read(registries, path, overrides)
    }

    /// Like [`read`](Self::read), but parses the given text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn parse(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        Self::parse_with(Registries::built_in(), file, text, overrides)
    }

    pub(crate) fn parse_with(
        registries: &Arc<Registries>,
        file: &str,
        text: &str,
        overrides: &[impl AsRef<str>],
    ) -> Result<Self, RunError> {
        Ok(parse(registries, file, text, &sets(overrides)?)?.told())
    }

    /// Writes the run as RON, with every field.
    pub fn to_ron(&self) -> String {
        let pretty = ron::ser::PrettyConfig::new().extensions(extensions());
        // A struct of numbers, strings and lists can always be written.
        ron::ser::to_string_pretty(self, pretty).unwrap_or_default()
    }
}

/// Reads overrides of the form `path=value`.
fn sets(overrides: &[impl AsRef<str>]) -> Result<Vec<Override>, RunError> {
    overrides.iter().map(|set| Override::set(set.as_ref())).collect()
}

/// A run file with its overrides.
pub(crate) struct Overridden<T> {
    pub run: T,
    /// Whether overrides set the length of the run and leave the schedule's phases, which are then shortened to it.
    pub fits_schedule: bool,
    /// A line for each phase that is shortened.
    pub shortened: Vec<String>,
}

impl<T> Overridden<T> {
    /// Returns the run, and tells the user what is shortened. Of a launcher's processes, one tells it.
    pub fn told(self) -> T {
        if Process::this().is_ok_and(Process::leads) {
            self.shortened.iter().for_each(|line| tracing::info!("{line}"));
        }
        self.run
    }
}

fn read<T: FromRunFile>(
    registries: &Arc<Registries>,
    path: &Path,
    overrides: &[Override],
) -> Result<Overridden<T>, RunError> {
    let failed = |reason: String| RunError::Read { path: path.into(), reason };
    let about = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if about.is_dir() {
        let own = path.join("run.ron");
        let named =
            if own.is_file() { format!("such as {}", own.display()) } else { "which it lacks".into() };
        return Err(failed(format!("it is a folder: name the run file in it, {named}")));
    }
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(failed(format!("expected a text file of at most {MOST_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let text = text.trim_start_matches('\u{feff}');
    parse(registries, &path.display().to_string(), text, overrides)
}

fn parse<T: FromRunFile>(
    registries: &Arc<Registries>,
    file: &str,
    text: &str,
    overrides: &[Override],
) -> Result<Overridden<T>, RunError> {
    let mut overridden = registries.reading(|| parsed::<T>(file, text, overrides))?;
    overridden.run.settle(registries);
    Ok(overridden)
}

/// Parses a text that may name what the current registries have.
fn parsed<T: FromRunFile>(file: &str, text: &str, overrides: &[Override]) -> Result<Overridden<T>, RunError> {
    let mut text = text.to_string();
    let mut run = parse_text::<T>(&text);
    for one in overrides {
        (text, run) = one.apply(&text, &run)?;
    }
    let mut run = run.map_err(|Flaw { at, reason }| {
        let caret = Caret::in_file(&text, at);
        RunError::Syntax { file: file.into(), line: caret.line(), reason, caret }
    })?;
    let sets = |field: &str| overrides.iter().rev().find(|one| one.sets(field));
    let is_length = sets("steps").or(sets("epochs")).is_some();
    let names = run.rate_settings();
    let fits_schedule = is_length && !overrides.iter().any(|one| one.sets_phases(names));
    let shortened = if fits_schedule { run.fit_schedule() } else { Vec::new() };
    check::check(&run, file, &text).map_err(|error| match &error {
        RunError::Value { field, expected, found, .. } => match sets(field) {
            Some(set) => set.impossible(&text, field, format!("`{field}` must be {expected}, found {found}")),
            None => error,
        },
        _ => error,
    })?;
    Ok(Overridden { run, fits_schedule, shortened })
}

/// Why a text is not a run.
struct Flaw {
    /// The byte of the text.
    at: usize,
    reason: String,
}

/// Parses a text. A name that lacks its parentheses counts as one with defaults: `optimizer: AdamW` is `AdamW()`.
fn parse_text<T: FromRunFile>(text: &str) -> Result<T, Flaw> {
    let mut text = text.to_string();
    let mut inserted = Vec::new();
    loop {
        let error = match from_ron(&text) {
            Ok(run) => return Ok(run),
            Err(error) => error,
        };
        match reason::bare_name(&error, &text) {
            Some(end) => {
                text.insert_str(end, "()");
                inserted.push(end);
            }
            None => {
                let (at, reason) = reason::of(&error, &text, &|text| from_ron::<T>(text).err());
                let at = inserted.iter().rev().fold(at, |at, end| at - at.saturating_sub(*end).min(2));
                return Err(Flaw { at, reason });
            }
        }
    }
}

fn from_ron<T: FromRunFile>(text: &str) -> Result<T, SpannedError> {
    ron::Options::default().with_default_extension(extensions()).from_str(text)
}
