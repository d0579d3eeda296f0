//! What can be wrong with the files that are imported.

use std::path::PathBuf;

use thiserror::Error;

use super::MOST_BYTES;

/// A configuration of DeepSpeed or of Hugging Face that cannot be imported.
#[derive(Debug, PartialEq, Error)]
pub enum ImportError {
    /// The file cannot be read, or is no file of settings.
    #[error("{path}: cannot read it: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The file is larger than any configuration.
    #[error(
        "{file}: expected a configuration of at most {MOST_BYTES} bytes, found more: is it another file?"
    )]
    TooLarge {
        /// The file.
        file: String,
    },
    /// The file has more fields than any configuration.
    #[error(
        "{file}:{line}: expected a configuration of at most {most} fields, found more: is it another file?"
    )]
    TooMany {
        /// The file.
        file: String,
        /// Where there are too many, from 1.
        line: usize,
        /// How many there may be.
        most: usize,
    },
    /// A name is longer than that of any field.
    #[error(
        "{file}:{line}: expected names of at most {most} characters, found a longer one: is it another file?"
    )]
    LongName {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
        /// Characters.
        most: usize,
    },
    /// The file is not JSON.
    #[error("{file}:{line}:{column}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What was expected and found.
        reason: String,
    },
    /// An object has two fields of one name, of which Python would take the last.
    #[error("{file}:{line}: `{field}` is given twice: keep one of the two")]
    Twice {
        /// The file.
        file: String,
        /// That of the second, from 1.
        line: usize,
        /// Path of the field.
        field: String,
    },
    /// A value cannot be, or has another type.
    #[error("{file}:{line}: `{field}` must be {expected}, found {found}")]
    Value {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
        /// Path of the field.
        field: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The two files say different things; Transformers refuses them too.
    #[error(
        "{file}:{line}: `{field}` is {}, but `{argument}` of the training arguments is {}: make them the same, or let \
         the first be \"auto\"",
        values.0, values.1
    )]
    Differ {
        /// The ds_config.
        file: String,
        /// From 1.
        line: usize,
        /// Path of the field in the ds_config.
        field: String,
        /// The training argument.
        argument: &'static str,
        /// What the two are, as JSON.
        values: Box<(String, String)>,
    },
    /// So many ranks cannot be.
    #[error("expected 1 to 100000 ranks, found {ranks}")]
    Ranks {
        /// How many were asked for.
        ranks: u64,
    },
    /// All parts of the global batch are given, and do not make it up.
    #[error(
        "{file}:{line}: `train_batch_size` is {global}, but micro-batches of {micro} x {accumulate} of them \
         in an update x {ranks} rank(s) = {}: change one of the four",
        u128::from(*micro) * u128::from(*accumulate) * u128::from(*ranks)
    )]
    Product {
        /// The file.
        file: String,
        /// That of `train_batch_size`, from 1.
        line: usize,
        /// Samples in an update.
        global: u64,
        /// Samples that go through the model at once.
        micro: u64,
        /// Micro-batches in an update, of each rank.
        accumulate: u64,
        /// Ranks.
        ranks: u64,
    },
    /// The global batch cannot be dealt evenly.
    #[error(
        "{file}:{line}: `train_batch_size` is {global}, which is no multiple of {divisor}, the {parts}: \
         change one of them"
    )]
    Quotient {
        /// The file.
        file: String,
        /// That of `train_batch_size`, from 1.
        line: usize,
        /// Samples in an update.
        global: u64,
        /// What it should be a multiple of.
        divisor: u128,
        /// What makes up the divisor, in words.
        parts: String,
    },
}
