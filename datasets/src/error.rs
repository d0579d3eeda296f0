//! Everything that can go wrong between a text and a batch.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::Place;

/// An error of this crate.
///
/// Each message says where it happened, what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or a folder could not be read or written.
    #[error("cannot access `{}`: {source}; check the path and its permissions", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// One record of a file is not what was expected. The records after it can still be read.
    #[error(
        "{place}{}: expected {expected}, found {found}; correct the record, or let malformed \
         records be skipped",
        field.as_ref().map(|field| format!(", field `{field}`")).unwrap_or_default()
    )]
    Record {
        /// Where it is.
        place: Place,
        /// The field, if it is about one.
        field: Option<String>,
        /// What should be there.
        expected: String,
        /// What is there.
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
        /// What it should be or hold.
        expected: String,
        /// What it is or holds.
        found: String,
    },

    /// A file holds bytes that are not UTF-8.
    #[error(
        "`{}` is not UTF-8 text: byte {offset} starts no valid character; convert the file to \
         UTF-8, or leave it out",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// How many bytes of it are valid.
        offset: usize,
    },

    /// A folder holds no file with one of the extensions looked for.
    #[error(
        "no file in `{}` has one of the extensions {extensions:?}; name the extensions of your \
         files",
        path.display()
    )]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The extensions looked for, without their dot.
        extensions: Vec<String>,
    },

    /// No file matches a pattern, or the pattern cannot be understood.
    #[error("no file found for the pattern `{pattern}`: {reason}; check the path and the pattern")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The ending of a file says no known format.
    #[error(
        "the format of `{}` cannot be told from its ending; the known endings are {known}, each \
         also with .gz or .zst; name the format",
        path.display()
    )]
    UnknownFormat {
        /// The file or pattern.
        path: PathBuf,
        /// The known endings.
        known: String,
    },

    /// A part was asked for that a reader does not have.
    #[error("part {part} was asked for, but there are {parts}; ask for parts from 0")]
    NoPart {
        /// The part, from 0.
        part: usize,
        /// How many there are.
        parts: usize,
    },

    /// A setting of a reader makes no sense.
    #[error("`{setting}`: expected {expected}, found {found}; correct the setting")]
    ReaderSetting {
        /// The name of the setting.
        setting: &'static str,
        /// What it can be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// There is no text where some is needed.
    #[error("{place} holds no text; give at least one character")]
    EmptyText {
        /// The path of the text, or what it was meant for.
        place: String,
    },

    /// A text has too few tokens to learn from.
    #[error("the text has {tokens} token(s) but at least {needed} are needed; give a longer text")]
    TooShort {
        /// How many tokens the text has.
        tokens: usize,
        /// How many it needs.
        needed: usize,
    },

    /// A setting that counts something is zero.
    #[error("`{setting}` is 0; it must be at least 1")]
    Zero {
        /// The name of the setting.
        setting: &'static str,
    },

    /// The part kept for validation is not a fraction of the text.
    #[error("the validation fraction is {fraction}; it must be at least 0 and below 1")]
    SplitFraction {
        /// The fraction asked for.
        fraction: f64,
    },

    /// A `tokenizer.json` cannot be used.
    #[error(
        "`{}` is not a usable tokenizer.json: {reason}; save it again with the tool that made it",
        path.display()
    )]
    TokenizerFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A byte-level vocabulary is too small to hold the bytes and one merge.
    #[error(
        "a byte-level BPE vocabulary of {asked} is impossible: 256 entries are the single bytes; \
         ask for at least {least}"
    )]
    VocabularySize {
        /// The size asked for.
        asked: usize,
        /// The smallest size possible.
        least: usize,
    },

    /// A text to encode holds a character that the vocabulary lacks.
    #[error(
        "line {line}, column {column}: the character {character:?} is not in the vocabulary; \
         build the vocabulary from all of the text, or use BPE, which can encode anything"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its line in the text, from 1.
        line: usize,
        /// Its place in the line, in characters, from 1.
        column: usize,
    },

    /// An id to decode lies outside of the vocabulary.
    #[error(
        "token id {id} is not in the vocabulary of {vocab_size}; decode with the tokenizer that \
         the model was trained with"
    )]
    UnknownId {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },

    /// A maximum length leaves no room for text.
    #[error(
        "a maximum of {max_length} token(s) leaves no room for text beside {special} special \
         token(s) and a stride of {stride}; raise `max_length` or lower `stride`"
    )]
    TooFewTokens {
        /// The most tokens of a sample.
        max_length: usize,
        /// The special tokens among them.
        special: usize,
        /// The tokens that are repeated.
        stride: usize,
    },

    /// A tokenizer could not do its work on a text or on ids.
    #[error("the tokenizer cannot {action}: {reason}; check its tokenizer.json")]
    TokenizerFailed {
        /// What it was asked to do.
        action: String,
        /// What it said.
        reason: String,
    },

    /// A token id does not fit in a signed 32-bit integer.
    #[error("token id {id} is too large; ids must be below 2147483648")]
    IdTooLarge {
        /// The id.
        id: u32,
    },

    /// A batch was given labels for another number of rows than it has.
    #[error("{ids} row(s) of ids came with {labels} row(s) of labels; give one for each row")]
    LabelRows {
        /// Rows of ids.
        ids: usize,
        /// Rows of labels.
        labels: usize,
    },

    /// A row of a batch was given another number of labels than it has ids.
    #[error("row {row} has {ids} id(s) but {labels} label(s); give one label for each id")]
    LabelLength {
        /// The row, from 0.
        row: usize,
        /// Its number of ids.
        ids: usize,
        /// Its number of labels.
        labels: usize,
    },

    /// Samples were asked for that an epoch does not have.
    #[error(
        "epoch {epoch} has {samples} sample(s), but positions {positions:?} were asked for; \
         continue only on the data and settings that the run started with"
    )]
    OutOfRange {
        /// The epoch.
        epoch: u64,
        /// The positions asked for.
        positions: Range<usize>,
        /// How many samples the epoch has.
        samples: usize,
    },

    /// An epoch has no samples, so that training could never get past it.
    #[error("epoch {epoch} has no samples; give a data set that has at least one")]
    EmptyEpoch {
        /// The epoch.
        epoch: u64,
    },

    /// Computing a batch panicked.
    #[error(
        "computing the batch at positions {positions:?} of epoch {epoch} panicked: {message}; \
         this is a bug in the data set"
    )]
    BatchPanicked {
        /// The epoch of the batch.
        epoch: u64,
        /// The positions of its samples.
        positions: Range<usize>,
        /// What the panic said.
        message: String,
    },
}

impl DataError {
    /// Whether it is about one record only, which can be skipped.
    pub fn is_about_a_record(&self) -> bool {
        matches!(self, Self::Record { .. })
    }

    /// The error of accessing this path.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// The error of a tokenizer that was asked to do this.
    pub(crate) fn tokenizer<E: ToString>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |reason| Self::TokenizerFailed { action: action.into(), reason: reason.to_string() }
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
    fn reads_as_a_sentence() {
        let error = DataError::UnknownCharacter { character: '\t', line: 3, column: 1 };
        assert_eq!(
            error.to_string(),
            "line 3, column 1: the character '\\t' is not in the vocabulary; build the vocabulary \
             from all of the text, or use BPE, which can encode anything"
        );
    }
}
