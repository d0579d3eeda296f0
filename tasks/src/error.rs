//! The errors of loading data.

use std::path::PathBuf;

use firebrick_datasets::DataError;
use thiserror::Error;

use crate::problem::Problem;

/// The data of a task cannot be loaded, or does not fit the model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The data cannot be read, tokenized or batched.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A setting is invalid, or contradicts another one.
    #[error(transparent)]
    Setting(#[from] Problem),
    /// The folder's classifier and the task have different labels.
    #[error(
        "{folder}: its classifier has the labels {known}, but {found}: to train it further, use these labels in \
         `task.names` and in the data; to start a new one, set `task.new_head` to true"
    )]
    Classifier {
        /// The folder.
        folder: PathBuf,
        /// The classifier's labels, by id.
        known: String,
        /// The labels of the task, and where they come from.
        found: String,
    },
    /// The tokenizer has more tokens than the model.
    #[error(
        "the tokenizer has {tokenizer} tokens, but the model knows {model}: set `data.tokenizer` to the \
         tokenizer of the model's folder"
    )]
    Vocabulary {
        /// Vocabulary size of the tokenizer.
        tokenizer: usize,
        /// Vocabulary size of the model.
        model: usize,
    },
    /// Rows may be longer than the model can read.
    #[error(
        "rows may have {} tokens, but {}: set `data.max_length`, `data.block` for windows, or `max_target_length` for targets",
        longest.map_or("any number of".into(), |longest| longest.to_string()),
        most.map_or("a fresh model needs a bound".into(), |most| format!("the model reads at most {most}"))
    )]
    Rows {
        /// The most tokens of a row of the data, if there is a limit.
        longest: Option<usize>,
        /// The most tokens of a row that the model reads.
        most: Option<usize>,
    },
    /// A part of the data cannot be cut into windows.
    #[error("the {part} part of the data: {error}")]
    Part {
        /// `training`, `validation` or `evaluated`.
        part: &'static str,
        /// The error of the data.
        error: DataError,
    },
    /// The data and the task do not fit a token file.
    #[error("a token file holds the text of `CausalLm` from `data.path`, and not that of `{0}` or of a mix")]
    Tokenize(&'static str),
    /// A file cannot be written.
    #[error("{path}: {doing}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// The system's error message.
        reason: String,
    },
    /// The work was interrupted before there was anything to save.
    #[error("interrupted; nothing was written")]
    Interrupted,
}
