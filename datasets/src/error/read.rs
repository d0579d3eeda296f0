//! The errors of reading files.

use std::{ops::Range, path::PathBuf};

use crate::{RecordPlace, counted};

/// An error of files and their records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A record of a file is malformed. The records after it can still be read.
    #[error(
        "{place}{}: expected {expected}, found {found}; correct the record, or skip \
         malformed ones (`malformed: Skip`)",
        field.as_ref().map(|field| format!(", field `{field}`")).unwrap_or_default()
    )]
    Record {
        /// The place of the record.
        place: RecordPlace,
        /// The field, if the error is about one.
        field: Option<String>,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },

    /// A file as a whole is not what was expected.
    #[error(
        "`{}`: expected {expected}, found {found}; correct the file, or leave it out",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },

    /// A file holds bytes that are not UTF-8.
    #[error(
        "`{}` is not UTF-8 text: the byte at offset {offset} does not start a valid character; convert the file to \
         UTF-8, or leave it out",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The number of valid bytes before the first invalid one.
        offset: usize,
    },

    /// Compressed files unpack to more text than is held in memory.
    #[error(
        "`{}`: expected compressed files to unpack to at most {most} bytes of text, which is held in memory, found \
         more; train on samples that are streamed (`rows: Samples` and `data.stream`), write a token file once \
         (`firebrick tokenize`), or raise `data.max_unpacked` if there is memory for the text",
        path.display()
    )]
    UnpackedText {
        /// The file in which the text becomes too long.
        path: PathBuf,
        /// The most bytes.
        most: u64,
    },

    /// A folder contains no file with one of the expected extensions.
    #[error(
        "no file in `{}` has one of the extensions {extensions:?}; specify the extensions of your files",
        path.display()
    )]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The expected extensions, without the dot.
        extensions: Vec<String>,
    },

    /// No file matches a pattern, or the pattern is invalid.
    #[error("no file found for the pattern `{pattern}`: {reason}; check the path and the pattern")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The file's extension does not identify a known format.
    #[error(
        "the extension of `{}` does not determine its format; the known extensions are {known}, each also followed \
         by .gz or .zst; specify the format",
        path.display()
    )]
    UnknownFormat {
        /// The file or pattern.
        path: PathBuf,
        /// The known extensions.
        known: String,
    },

    /// A reader does not have the requested part.
    #[error("part {part} does not exist among {}, numbered from 0", counted(*parts, "part"))]
    NoPart {
        /// The part, from 0.
        part: usize,
        /// The number of parts.
        parts: usize,
    },

    /// A reader's setting is invalid.
    #[error("`{setting}`: expected {expected}, found {found}; correct the setting")]
    ReaderSetting {
        /// The name of the setting.
        setting: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },

    /// A token file is unusable.
    #[error("`{}` is not a usable token file: {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },

    /// A sequence does not have the requested tokens.
    #[error("tokens {range:?} were requested, but there are only {tokens}; request a range within them")]
    TokenRange {
        /// The requested tokens.
        range: Range<usize>,
        /// The number of tokens in the sequence.
        tokens: usize,
    },
}

/// Says that the bytes of a compressed file are damaged. It travels within an [`io::Error`](std::io::Error) through readers that know
/// nothing of compression, and becomes the error of a file: its path and permissions are in order.
#[cfg(feature = "text")]
#[derive(Debug, thiserror::Error)]
#[error("{found}")]
pub(crate) struct Unpacking {
    /// What the data should be.
    pub(crate) expected: &'static str,
    /// What was found.
    pub(crate) found: String,
}

#[cfg(feature = "text")]
impl From<Unpacking> for std::io::Error {
    fn from(error: Unpacking) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}
