//! The errors of this crate.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

#[cfg(feature = "text")]
mod chat;
mod read;
mod sample;
mod tokenizer;

#[cfg(feature = "text")]
pub use chat::ChatError;
pub use read::ReadError;
#[cfg(feature = "text")]
pub(crate) use read::Unpacking;
pub use sample::SampleError;
pub use tokenizer::TokenizerError;

/// An error of this crate.
///
/// Each message says where the error occurred, what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An error of files and their records.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// An error of a tokenizer or its files.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),

    /// An error of a chat template.
    #[cfg(feature = "text")]
    #[error(transparent)]
    Chat(#[from] ChatError),

    /// An error of samples, their order or their batches.
    #[error(transparent)]
    Sample(#[from] SampleError),

    /// A file or a folder could not be read or written.
    #[error("cannot access `{}`: {source}; {}", path.display(), advice(source.kind()))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// This build cannot read a format.
    #[error(
        "this build cannot read {what}; enable the feature `{feature}` of the crate `firebrick-datasets` or \
         `firebrick`"
    )]
    NotBuilt {
        /// What it cannot read.
        what: &'static str,
        /// The feature of this crate that adds it.
        feature: &'static str,
    },

    /// A text is empty where text is required.
    #[error("{place} has no text; provide at least one character")]
    EmptyText {
        /// The path of the text, or its purpose.
        place: String,
    },

    /// A setting that counts something is zero.
    #[error("`{setting}` is 0; it must be at least 1")]
    Zero {
        /// The name of the setting.
        setting: &'static str,
    },

    /// A setting is not a probability.
    #[error("`{setting}` is {value}; it must be between 0 and 1")]
    Probability {
        /// The name of the setting.
        setting: &'static str,
        /// Its value.
        value: f64,
    },
}

impl DataError {
    /// Returns whether the error is about a single record, which can be skipped.
    pub fn is_about_a_record(&self) -> bool {
        matches!(self, Self::Read(ReadError::Record { .. }))
    }

    /// Turns an error about a record's text into an error about that record, with its place.
    pub fn about(self, place: &RecordPlace) -> Self {
        let expected = match self {
            Self::Tokenizer(
                TokenizerError::TokenizerFailed { .. } | TokenizerError::UnknownCharacter { .. },
            ) => "a text that the tokenizer can encode",
            Self::Sample(SampleError::RowTooLong { .. }) => "a sample that fits into a row",
            #[cfg(feature = "text")]
            Self::Chat(
                ChatError::Rendering { .. } | ChatError::Unmarked { .. } | ChatError::NoMessages { .. },
            ) => "a conversation for the chat template",
            other => return other,
        };
        Self::record(place.clone(), None, expected, self.to_string())
    }

    /// Creates the error of a malformed record.
    pub(crate) fn record(
        place: RecordPlace,
        field: Option<&str>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        let (field, expected, found) = (field.map(str::to_owned), expected.into(), found.into());
        ReadError::Record { place, field, expected, found }.into()
    }

    /// Creates the error for a position that an epoch does not have.
    pub(crate) fn out_of_range(epoch: u64, position: usize, samples: usize) -> Self {
        SampleError::OutOfRange { epoch, positions: position..position.saturating_add(1), samples }.into()
    }

    /// Returns a function that adds the path to an I/O error. Damaged compressed data becomes the error of a file.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            #[cfg(feature = "text")]
            if let Some(Unpacking { expected, found }) =
                source.get_ref().and_then(|inner| inner.downcast_ref::<Unpacking>())
            {
                let (expected, found) = (expected.to_string(), found.clone());
                return ReadError::File { path: path.to_owned(), expected, found }.into();
            }
            Self::Io { path: path.to_owned(), source }
        }
    }
}

/// Says what to do about an error of the operating system.
fn advice(kind: io::ErrorKind) -> &'static str {
    use io::ErrorKind::{FileTooLarge, OutOfMemory, QuotaExceeded, StorageFull};
    match kind {
        OutOfMemory => {
            "this process may use too little memory for it: free some, raise its limit, or read less at once"
        }
        StorageFull | QuotaExceeded | FileTooLarge => "free space there, or use another place",
        _ => "check the path and its permissions",
    }
}

/// The place of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPlace {
    /// The file.
    pub file: Arc<Path>,
    /// The line on which the record begins, from 1; in a format without lines, the record's number.
    pub line: u64,
}

impl fmt::Display for RecordPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crosses_threads() {
        fn sendable<T: Send + Sync + 'static>() {}
        sendable::<DataError>();
    }

    #[test]
    fn advice_fits_the_cause() {
        for (kind, says) in [
            (io::ErrorKind::NotFound, "check the path"),
            (io::ErrorKind::OutOfMemory, "too little memory"),
            (io::ErrorKind::StorageFull, "free space"),
        ] {
            let error = DataError::io(Path::new("a.txt"))(kind.into()).to_string();
            assert!(error.starts_with("cannot access `a.txt`: ") && error.contains(says), "{error}");
        }
    }

    #[test]
    fn messages_are_sentences() {
        let origin = Some("runs/a/tokenizer.json".into());
        let error = DataError::Tokenizer(TokenizerError::UnknownCharacter {
            character: '\t',
            line: 3,
            column: 1,
            origin,
        });
        assert_eq!(
            error.to_string(),
            "line 3, column 1 of the text: the character '\\t' is not in the vocabulary of runs/a/tokenizer.json, \
             which has only the characters of the text that it was built from; remove the character, build the \
             vocabulary from text that contains it, or use BPE, which encodes any text"
        );
    }
}
