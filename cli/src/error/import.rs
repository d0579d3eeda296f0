//! The errors of an import.

use std::path::PathBuf;

use firebrick_datasets::counted;
use thiserror::Error;

/// A configuration is small; anything larger is a different file, named by mistake.
pub(crate) const MOST_BYTES: u64 = 1 << 20;

/// A configuration of DeepSpeed or Hugging Face cannot be imported.
#[derive(Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read, or is not a settings file.
    #[error("{path}: cannot read it: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
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
    /// The file has more of something than any configuration.
    #[error(
        "{file}:{line}: expected a configuration of at most {most} {what}, found more: is it another file?"
    )]
    NoConfiguration {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The limit.
        most: usize,
        /// What is limited.
        what: &'static str,
    },
    /// The file is not JSON.
    #[error("{file}:{line}:{column}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
        /// What was expected and what was found.
        reason: String,
    },
    /// An object has two fields with the same name. Python would take the last one.
    #[error("{file}:{line}: `{field}` is given twice: keep one of the two")]
    Twice {
        /// The file.
        file: String,
        /// The line of the second field, counted from 1.
        line: usize,
        /// The path of the field.
        field: String,
    },
    /// A value is invalid, or has the wrong type.
    #[error("{file}:{line}: `{field}` must be {expected}, found {found}")]
    Value {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The path of the field.
        field: String,
        /// What the field may be.
        expected: String,
        /// What the field is.
        found: String,
    },
    /// The two files contradict each other; Transformers rejects them too.
    #[error(
        "{file}:{line}: `{field}` is {}, but `{argument}` of the training arguments is {}: make them the same, or let \
         the first be \"auto\"",
        values.0, values.1
    )]
    Differ {
        /// The ds_config.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The path of the field in the ds_config.
        field: String,
        /// The training argument.
        argument: &'static str,
        /// The two values, as JSON.
        values: Box<(String, String)>,
    },
    /// The number of ranks is invalid.
    #[error("expected 1 to 100000 ranks, found {ranks}")]
    Ranks {
        /// The requested number of ranks.
        ranks: u64,
    },
    /// All parts of the global batch are given, but their product differs from it.
    #[error(
        "{file}:{line}: `train_batch_size` is {global}, but micro-batches of {micro} x {accumulate} of them \
         in an update x {} = {}: change one of the four",
        counted(*ranks, "rank"),
        u128::from(*micro) * u128::from(*accumulate) * u128::from(*ranks)
    )]
    Product {
        /// The file.
        file: String,
        /// The line of `train_batch_size`, counted from 1.
        line: usize,
        /// Samples in an update.
        global: u64,
        /// Samples in a micro-batch.
        micro: u64,
        /// Micro-batches of each rank in an update.
        accumulate: u64,
        /// Ranks.
        ranks: u64,
    },
    /// The global batch cannot be divided evenly.
    #[error(
        "{file}:{line}: `train_batch_size` is {global}, which is no multiple of {divisor}, the {parts}: \
         change one of them"
    )]
    Quotient {
        /// The file.
        file: String,
        /// The line of `train_batch_size`, counted from 1.
        line: usize,
        /// Samples in an update.
        global: u64,
        /// The number that it should be a multiple of.
        divisor: u128,
        /// What the divisor consists of, as a phrase.
        parts: String,
    },
}
