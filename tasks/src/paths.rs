//! Paths of data.

use std::path::PathBuf;

use firebrick_datasets::{DataError, Files, Format, ReadError, Reader};
use serde::{Deserialize, Serialize};

/// One or several paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a path in quotes, or a list of paths")]
pub enum Paths {
    /// One path.
    One(PathBuf),
    /// Several paths, in order.
    Several(Vec<PathBuf>),
}

impl From<PathBuf> for Paths {
    fn from(path: PathBuf) -> Self {
        Self::One(path)
    }
}

impl Paths {
    /// Returns the paths as a slice.
    pub fn as_slice(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }

    /// Opens the files in the given format, or in the one of their extensions.
    ///
    /// # Errors
    ///
    /// A file does not exist, or the files have no format in common.
    pub fn open(&self, format: Option<&Format>) -> Result<Box<dyn Reader>, DataError> {
        let format = match format {
            Some(format) => format.clone(),
            None => self.format()?,
        };
        format.open(self.as_slice())
    }

    /// Returns the format that all of these paths have by their extensions.
    pub(crate) fn format(&self) -> Result<Format, DataError> {
        let [first, others @ ..] = self.as_slice() else {
            return Err(DataError::EmptyText { place: "`data.path`".into() });
        };
        // A path that leads nowhere has no format either, and its error says so.
        let format = Format::of(first).or_else(|error| match first.is_dir() {
            true => Err(error),
            false => Files::find([first], &[]).and(Err(error)),
        })?;
        match others.iter().find(|path| Format::of(path).as_ref().ok() != Some(&format)) {
            None => Ok(format),
            Some(other) => Err(DataError::Read(ReadError::File {
                path: other.clone(),
                expected: format!("a file of the same format as {}", first.display()),
                found: "another ending (`data.format` says how all of them are read)".into(),
            })),
        }
    }

    /// Describes the paths in a few words.
    pub(crate) fn summary(&self) -> String {
        match self.as_slice() {
            [] => "nothing".into(),
            [path] => path.display().to_string(),
            [first, rest @ ..] => format!("{} and {} more", first.display(), rest.len()),
        }
    }
}
