//! Why a run file cannot be drafted.

use std::path::PathBuf;

use thiserror::Error;

/// Why [`firebrick init`](crate::guide::commands) writes no run file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InitError {
    /// No task has this name.
    #[error("unknown task `{name}`{}: expected one of {}", nearest.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default(), known.join(", "))]
    Task {
        /// The name.
        name: String,
        /// The nearest task.
        nearest: Option<&'static str>,
        /// All tasks.
        known: Vec<&'static str>,
    },
    /// A task has settings without a default.
    #[error(
        "the task `{0}` has settings without a default, which only you know: write the run file by hand; `firebrick schema` lists its settings"
    )]
    NoDefaults(&'static str),
    /// The data does not fit the task.
    #[error("{}: {reason}; for another task, `firebrick init --help` lists them", path.display())]
    Data {
        /// The data.
        path: PathBuf,
        /// What the task needs.
        reason: String,
    },
    /// No run file that is suggested trains on the data.
    #[error(
        "{}: a run file that trains on this data cannot be suggested: {reason}; correct the data, or write the run file by hand: `firebrick schema` lists its fields",
        path.display()
    )]
    Trial {
        /// The data.
        path: PathBuf,
        /// The error of the suggested run.
        reason: String,
    },
    /// The data, or the validation data, is empty.
    #[error("{} has no records; add some, or name other data with --data or --valid", .0.display())]
    NoRecords(PathBuf),
    /// No registered family learns the task with settings that are known.
    #[error(
        "no fresh model learns `{0}` with settings that have defaults: name the folder of a model with --model"
    )]
    NoModel(&'static str),
}
