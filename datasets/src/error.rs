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
        "{place}{}: expected {expected}, found {found}; correct the record, or skip \
         malformed ones (`malformed: Skip`)",
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

    /// There is no `tokenizer.json`.
    #[error("`{}` is no tokenizer.json: {fix}", path.display())]
    NoTokenizerFile {
        /// What was named, or the file that its folder lacks.
        path: PathBuf,
        /// What is there instead, and how to get the file.
        fix: String,
    },

    /// A token file cannot be used.
    #[error("`{}` is not a usable token file: {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },

    /// Tokens were asked for that a sequence does not have.
    #[error("tokens {range:?} were asked for, but there are {tokens}")]
    TokenRange {
        /// The tokens asked for.
        range: Range<usize>,
        /// How many there are.
        tokens: usize,
    },

    /// A file beside a `tokenizer.json` cannot be used.
    #[error(
        "`{}`{}: expected {expected}, found {found}; correct the file, or remove it",
        path.display(),
        field.as_ref().map(|field| format!(", field `{field}`")).unwrap_or_default()
    )]
    TokenizerConfig {
        /// The file.
        path: PathBuf,
        /// The field, if it is about one.
        field: Option<String>,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },

    /// A token that is to have a role is not in the vocabulary.
    #[error(
        "the {role} token {token:?} is not in the vocabulary; name one that is{}",
        if known.is_empty() { String::new() } else { format!(", for example one of the special tokens {}", listed(known)) }
    )]
    UnknownToken {
        /// The role.
        role: &'static str,
        /// The token that was named.
        token: String,
        /// The special tokens that the tokenizer has.
        known: Vec<String>,
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

    /// A row has more tokens than it may have.
    #[error(
        "row {row} has {tokens} token(s), but rows are {length} long; let the encoder cut texts \
         with `max_length`, or raise the length"
    )]
    RowTooLong {
        /// The row, from 0.
        row: usize,
        /// Its tokens.
        tokens: usize,
        /// The most tokens of a row.
        length: usize,
    },

    /// A token with a role is needed, and nothing says which it is.
    #[error(
        "the tokenizer has no {role} token; say which of its tokens it is (`special` in a run file, \
         `{setting}` in Rust), or read the tokenizer from a folder whose configuration names it"
    )]
    NoToken {
        /// What the token is for.
        role: &'static str,
        /// The setting that takes one.
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

    /// A name of a class was given twice.
    #[error("the label `{label}` comes twice; give each name once")]
    DuplicateLabel {
        /// The name.
        label: String,
    },

    /// A label that begins an entity has none that continues it.
    #[error("there is a label `{begins}` but no `{continues}`; add it to the labels")]
    NoInsideLabel {
        /// The label that begins.
        begins: String,
        /// The label that is missing.
        continues: String,
    },

    /// A sample has another kind of label than its collator makes.
    #[error(
        "sample {index} has another kind of label than the batch; collate samples with the \
         collator that made them"
    )]
    OtherLabel {
        /// The sample's index.
        index: u64,
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

    /// A sample has more tokens than may be in a row or a batch.
    #[error(
        "the sample at position {position} of epoch {epoch} has {tokens} tokens, more than the \
         {most} that there is room for; cut samples at a maximum length, or give more room"
    )]
    SampleTooLong {
        /// The epoch.
        epoch: u64,
        /// The position of the sample in the epoch's order.
        position: usize,
        /// Its tokens, once padded.
        tokens: usize,
        /// How many there is room for.
        most: usize,
    },

    /// A batch is to be bounded by its tokens, but the data set does not tell them.
    #[error(
        "this data set does not know the tokens of its samples; cut batches by samples, or \
         implement `Batches::padded_tokens`"
    )]
    NoTokenCounts,

    /// Data that is read again is not what it was.
    #[error(
        "part {part} of the data (counted from 0) changed: it had {counted} samples when it was \
         opened, and sample {read} is not as it was; leave the files as they are while they are read"
    )]
    Changed {
        /// The part.
        part: usize,
        /// Its samples when it was opened.
        counted: usize,
        /// Where it differs.
        read: usize,
    },

    /// A rank is not one of those there are.
    #[error("rank {rank} is not one of {ranks}; ranks are counted from 0")]
    Rank {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },

    /// The weight of a corpus in a mix is impossible.
    #[error(
        "the weight of corpus {corpus} (counted from 0) is {weight}; it must be a number above 0, \
         and here at least {least}, a ten-thousandth of all weights"
    )]
    Weight {
        /// The corpus, from 0.
        corpus: usize,
        /// Its weight.
        weight: f64,
        /// The least that it may be.
        least: f64,
    },

    /// A corpus to be mixed has no samples.
    #[error("corpus {corpus} (counted from 0) has no samples; give one that has, or leave it out")]
    EmptyCorpus {
        /// The corpus, from 0.
        corpus: usize,
    },

    /// Data that was read gave no samples.
    #[error(
        "{place} gave no samples ({skipped} malformed record(s) were skipped): its records are empty, or too \
         short, or nothing of them is supervised; look at them, and at the maximum length"
    )]
    NoSamples {
        /// Where the data is, and what it is for.
        place: String,
        /// The malformed records that were skipped.
        skipped: u64,
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

    /// If it is about the text of a record: the same about that record, with its place.
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

    /// The error of a position that an epoch does not have.
    pub(crate) fn out_of_range(epoch: u64, position: usize, samples: usize) -> Self {
        Self::OutOfRange { epoch, positions: position..position.saturating_add(1), samples }
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

/// The first few of many.
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
        let error = DataError::UnknownCharacter { character: '\t', line: 3, column: 1 };
        assert_eq!(
            error.to_string(),
            "line 3, column 1: the character '\\t' is not in the vocabulary; build the vocabulary \
             from all of the text, or use BPE, which can encode anything"
        );
    }
}
