//! From text and overrides to a checked run.

use std::path::Path;

use ron::error::{Error as RonError, SpannedError};
use ron::extensions::Extensions;

use super::{Run, RunError, check, ron_path};

impl Run {
    /// Reads a run file, with overrides of the form `path=value` whose values are RON.
    ///
    /// # Errors
    ///
    /// What is wrong, with file, line, the nearest known name, and what may stand there.
    pub fn read(path: &Path, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| RunError::Read { path: path.into(), reason: error.to_string() })?;
        Self::parse(&path.display().to_string(), &text, overrides)
    }

    /// As [`read`](Self::read), of the text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn parse(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        let mut text = text.to_string();
        let mut run = parse_text(file, &text);
        for set in overrides {
            let set = set.as_ref();
            let failed = |reason: String| RunError::Set { set: set.into(), reason };
            let changed = apply(&text, set).map_err(|reason| {
                // A file that is broken by itself is the file's mistake, not the override's.
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
                return Err(failed(reason.clone()));
            }
        }
        let run = run?;
        check::check(&run, file, &text)?;
        Ok(run)
    }

    /// The run as RON, every field written out.
    pub fn to_ron(&self) -> String {
        let pretty = ron::ser::PrettyConfig::new().extensions(extensions());
        // A struct of numbers, texts and lists always can be written.
        ron::ser::to_string_pretty(self, pretty).unwrap_or_default()
    }
}

fn apply(text: &str, set: &str) -> Result<String, String> {
    let Some((path, value)) = set.split_once('=') else {
        return Err("expected path=value, as in `batch.micro=4`".into());
    };
    ron_path::set(text, path.trim(), value).map_err(|error| error.to_string())
}

fn extensions() -> Extensions {
    Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES
}

fn parse_text(file: &str, text: &str) -> Result<Run, RunError> {
    let options = ron::Options::default().with_default_extension(extensions());
    options.from_str(text).map_err(|SpannedError { code, span }| {
        // Our scanner knows which bracket is still open; RON itself knows what a run is made of.
        let broken = ron_path::first_mistake(text);
        RunError::Syntax {
            file: file.into(),
            line: broken.as_ref().map_or(span.start.line, |(line, _)| *line),
            reason: broken.map_or_else(|| explain(&code), |(_, reason)| reason),
        }
    })
}

/// RON's reason, with the nearest known name where a name is unknown.
fn explain(error: &RonError) -> String {
    let (expected, found) = match error {
        RonError::NoSuchStructField { expected, found, .. }
        | RonError::NoSuchEnumVariant { expected, found, .. } => (expected, found),
        _ => return error.to_string(),
    };
    let nearest = expected
        .iter()
        .max_by(|a, b| strsim::jaro_winkler(a, found).total_cmp(&strsim::jaro_winkler(b, found)));
    let hint = match nearest {
        Some(name) if strsim::jaro_winkler(name, found) > 0.7 => format!(" (did you mean `{name}`?)"),
        _ => String::new(),
    };
    format!("unknown name `{found}`{hint}; expected one of {}", expected.join(", "))
}
