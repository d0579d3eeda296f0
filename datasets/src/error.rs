//! The errors of this crate.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::Place;

/// An error of this crate.
///
/// Each message says where the error occurred, what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or a folder could not be read or written.
    #[error("cannot access `{}`: {source}; check the path and its permissions", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// A record of a file is malformed. The records after it can still be read.
    #[error(
        "{place}{}: expected {expected}, found {found}; correct the record, or skip \
         malformed ones (`malformed: Skip`)",
        field.as_ref().map(|field| format!(", field `{field}`")).unwrap_or_default()
    )]
    Record {
        /// The place of the record.
        place: Place,
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
        "`{}` is not UTF-8 text: byte {offset} starts no valid character; convert the file to \
         UTF-8, or leave it out",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The number of valid bytes before the first invalid one.
        offset: usize,
    },

    /// A folder contains no file with one of the expected extensions.
    #[error(
        "no file in `{}` has one of the extensions {extensions:?}; name the extensions of your \
         files",
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
        "the format of `{}` cannot be told from its ending; the known endings are {known}, each \
         also with .gz or .zst; name the format",
        path.display()
    )]
    UnknownFormat {
        /// The file or pattern.
        path: PathBuf,
        /// The known extensions.
        known: String,
    },

    /// This build cannot read a format.
    #[error(
        "this build reads no {what}; enable the feature `{feature}` of the crate `firebrick-datasets` or `firebrick`"
    )]
    NotBuilt {
        /// What it cannot read.
        what: &'static str,
        /// The feature of this crate that adds it.
        feature: &'static str,
    },

    /// A reader does not have the requested part.
    #[error("part {part} was asked for, but there are {parts}; ask for parts from 0")]
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

    /// A text is empty where text is required.
    #[error("{place} holds no text; give at least one character")]
    EmptyText {
        /// The path of the text, or its purpose.
        place: String,
    },

    /// A text has too few tokens to train on.
    #[error("the text has {tokens} token(s) but at least {needed} are needed; give a longer text")]
    TooShort {
        /// The number of tokens in the text.
        tokens: usize,
        /// The number of tokens required.
        needed: usize,
    },

    /// A setting that counts something is zero.
    #[error("`{setting}` is 0; it must be at least 1")]
    Zero {
        /// The name of the setting.
        setting: &'static str,
    },

    /// The validation fraction is out of range.
    #[error("the validation fraction is {fraction}; it must be at least 0 and below 1")]
    SplitFraction {
        /// The requested fraction.
        fraction: f64,
    },

    /// A `tokenizer.json` is unusable.
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

    /// There is no `tokenizer.json`.
    #[error("`{}` is no tokenizer.json: {fix}", path.display())]
    NoTokenizerFile {
        /// The given path, or the file that the given folder lacks.
        path: PathBuf,
        /// What was found instead, and how to get the file.
        fix: String,
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
    #[error("tokens {range:?} were asked for, but there are {tokens}")]
    TokenRange {
        /// The requested tokens.
        range: Range<usize>,
        /// The number of tokens in the sequence.
        tokens: usize,
    },

    /// A file next to a `tokenizer.json` is unusable.
    #[error(
        "`{}`{}: expected {expected}, found {found}; correct the file, or remove it",
        path.display(),
        field.as_ref().map(|field| format!(", field `{field}`")).unwrap_or_default()
    )]
    TokenizerConfig {
        /// The file.
        path: PathBuf,
        /// The field, if the error is about one.
        field: Option<String>,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },

    /// The token named for a role is not in the vocabulary.
    #[error(
        "the {role} token {token:?} is not in the vocabulary; name one that is{}",
        if known.is_empty() { String::new() } else { format!(", for example one of the special tokens {}", listed(known)) }
    )]
    UnknownToken {
        /// The role.
        role: &'static str,
        /// The named token.
        token: String,
        /// The tokenizer's special tokens.
        known: Vec<String>,
    },

    /// A byte-level vocabulary is too small for the 256 bytes and one merge.
    #[error(
        "a byte-level BPE vocabulary of {asked} is impossible: 256 entries are the single bytes; \
         ask for at least {least}"
    )]
    VocabularySize {
        /// The requested size.
        asked: usize,
        /// The smallest size possible.
        least: usize,
    },

    /// The text to encode contains a character that the vocabulary lacks.
    #[error(
        "line {line}, column {column} of the text: the character {character:?} is not in the vocabulary{}, \
         which holds the characters of the text that it was built from; leave the character out, \
         build the vocabulary from text that has it, or use BPE, which can encode anything",
        origin.as_ref().map_or_else(String::new, |path| format!(" of {}", path.display()))
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its line in the text, from 1.
        line: usize,
        /// Its column, in characters, from 1.
        column: usize,
        /// The file of the vocabulary, if it was read from one.
        origin: Option<PathBuf>,
    },

    /// An id to decode is outside the vocabulary.
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
        /// The maximum number of tokens in a sample.
        max_length: usize,
        /// The number of special tokens among them.
        special: usize,
        /// The number of repeated tokens.
        stride: usize,
    },

    /// A tokenizer failed on a text or on ids.
    #[error("the tokenizer cannot {action}: {reason}; check its tokenizer.json")]
    TokenizerFailed {
        /// The action that failed.
        action: String,
        /// The tokenizer's message.
        reason: String,
    },

    /// A token id does not fit in a signed 32-bit integer.
    #[error("token id {id} is too large; ids must be below 2147483648")]
    IdTooLarge {
        /// The id.
        id: u32,
    },

    /// The numbers of rows of ids and of labels differ.
    #[error("{ids} row(s) of ids came with {labels} row(s) of labels; give one for each row")]
    LabelRows {
        /// The rows of ids.
        ids: usize,
        /// The rows of labels.
        labels: usize,
    },

    /// The numbers of ids and of labels in a row differ.
    #[error("row {row} has {ids} id(s) but {labels} label(s); give one label for each id")]
    LabelLength {
        /// The row, from 0.
        row: usize,
        /// Its number of ids.
        ids: usize,
        /// Its number of labels.
        labels: usize,
    },

    /// A row has more tokens than allowed.
    #[error(
        "row {row} has {tokens} token(s), but rows are {length} long; let the encoder cut texts \
         with `max_length`, or raise the length"
    )]
    RowTooLong {
        /// The row, from 0.
        row: usize,
        /// The number of tokens in the row.
        tokens: usize,
        /// The maximum number of tokens in a row.
        length: usize,
    },

    /// A collator needs a token for a role, and neither the settings nor the tokenizer define it.
    #[error(
        "the tokenizer has no {role} token; say which of its tokens it is (`special` in a run file, \
         `{setting}` in Rust), or read the tokenizer from a folder whose configuration names it"
    )]
    NoToken {
        /// The role.
        role: &'static str,
        /// The setting that defines it.
        setting: &'static str,
    },

    /// A setting is not a probability.
    #[error("`{setting}` is {value}; it must be from 0 to 1")]
    Probability {
        /// The name of the setting.
        setting: &'static str,
        /// Its value.
        value: f64,
    },

    /// A class name occurs twice.
    #[error("the label `{label}` comes twice; give each name once")]
    DuplicateLabel {
        /// The name.
        label: String,
    },

    /// A label that begins an entity has no matching label that continues it.
    #[error("there is a label `{begins}` but no `{continues}`; add it to the labels")]
    NoInsideLabel {
        /// The label that begins an entity.
        begins: String,
        /// The missing label.
        continues: String,
    },

    /// A sample has a different kind of label than its collator makes.
    #[error(
        "sample {index} has another kind of label than the batch; collate samples with the \
         collator that made them"
    )]
    OtherLabel {
        /// The sample's index.
        index: u64,
    },

    /// An epoch does not have the requested positions.
    #[error(
        "epoch {epoch} has {samples} sample(s), but positions {positions:?} were asked for; \
         continue only on the data and settings that the run started with"
    )]
    OutOfRange {
        /// The epoch.
        epoch: u64,
        /// The requested positions.
        positions: Range<usize>,
        /// The number of samples in the epoch.
        samples: usize,
    },

    /// A sample has more tokens than a row or a batch can hold.
    #[error(
        "the sample at position {position} of epoch {epoch} has {tokens} tokens, more than the \
         {most} that there is room for; cut samples at a maximum length, or give more room"
    )]
    SampleTooLong {
        /// The epoch.
        epoch: u64,
        /// The position of the sample in the epoch's order.
        position: usize,
        /// The number of tokens, including padding.
        tokens: usize,
        /// The maximum number of tokens.
        most: usize,
    },

    /// Batches are cut by tokens, but the data set does not count its tokens.
    #[error(
        "this data set does not know the tokens of its samples; cut batches by samples, or \
         implement `Batches::padded_tokens`"
    )]
    NoTokenCounts,

    /// The data changed since it was opened.
    #[error(
        "part {part} of the data (counted from 0) changed: it had {counted} samples when it was \
         opened, and sample {read} is not as it was; leave the files as they are while they are read"
    )]
    Changed {
        /// The part.
        part: usize,
        /// The number of samples when it was opened.
        counted: usize,
        /// The first sample that differs.
        read: usize,
    },

    /// A rank is not below the number of ranks.
    #[error("rank {rank} is not one of {ranks}; ranks are counted from 0")]
    Rank {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },

    /// The weight of a corpus in a mix is invalid.
    #[error(
        "the weight of corpus {corpus} (counted from 0) is {weight}; it must be a number above 0, \
         and here at least {least}, a ten-thousandth of all weights"
    )]
    Weight {
        /// The corpus, from 0.
        corpus: usize,
        /// Its weight.
        weight: f64,
        /// The smallest valid weight.
        least: f64,
    },

    /// A corpus in a mix has no samples.
    #[error("corpus {corpus} (counted from 0) has no samples; give one that has, or leave it out")]
    EmptyCorpus {
        /// The corpus, from 0.
        corpus: usize,
    },

    /// The data contains no samples.
    #[error(
        "{place} gave no samples ({skipped} malformed record(s) were skipped): its records are empty, or too \
         short, or nothing of them is supervised; look at them, and at the maximum length"
    )]
    NoSamples {
        /// Where the data is, and its purpose.
        place: String,
        /// The number of malformed records that were skipped.
        skipped: u64,
    },

    /// An epoch has no samples, so training could never finish it.
    #[error("epoch {epoch} has no samples; give a data set that has at least one")]
    EmptyEpoch {
        /// The epoch.
        epoch: u64,
    },

    /// The computation of a batch panicked.
    #[error(
        "computing the batch at positions {positions:?} of epoch {epoch} panicked: {message}; \
         this is a bug in the data set"
    )]
    BatchPanicked {
        /// The epoch of the batch.
        epoch: u64,
        /// The positions of its samples.
        positions: Range<usize>,
        /// The message of the panic.
        message: String,
    },
}

impl DataError {
    /// Returns whether the error is about a single record, which can be skipped.
    pub fn is_about_a_record(&self) -> bool {
        matches!(self, Self::Record { .. })
    }

    /// Turns an error about a record's text into an error about that record, with its place.
    pub(crate) fn about(self, place: &Place) -> Self {
        let expected = match self {
            Self::TokenizerFailed { .. } | Self::UnknownCharacter { .. } => {
                "a text that the tokenizer can encode"
            }
            Self::RowTooLong { .. } => "a sample that fits into a row",
            other => return other,
        };
        Self::Record { place: place.clone(), field: None, expected: expected.into(), found: self.to_string() }
    }

    /// Creates the error for a position that an epoch does not have.
    pub(crate) fn out_of_range(epoch: u64, position: usize, samples: usize) -> Self {
        Self::OutOfRange { epoch, positions: position..position.saturating_add(1), samples }
    }

    /// Returns a function that adds the path to an I/O error.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// Lists the first few of many tokens.
fn listed(tokens: &[String]) -> String {
    let few: Vec<String> = tokens.iter().take(12).map(|token| format!("{token:?}")).collect();
    let more = tokens.len() - few.len();
    few.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
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
        let origin = Some("runs/a/tokenizer.json".into());
        let error = DataError::UnknownCharacter { character: '\t', line: 3, column: 1, origin };
        assert_eq!(
            error.to_string(),
            "line 3, column 1 of the text: the character '\\t' is not in the vocabulary of runs/a/tokenizer.json, \
             which holds the characters of the text that it was built from; leave the character out, \
             build the vocabulary from text that has it, or use BPE, which can encode anything"
        );
    }
}
