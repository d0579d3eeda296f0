//! Errors of saving and resuming a run.

use std::fmt;
use std::path::PathBuf;

use firebrick_checkpoints::CheckpointError;
use thiserror::Error;

use crate::scratch::ScratchError;

/// A setting that differs from that of the saved run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its path in the run file, or the trainer's name for it.
    pub field: String,
    /// The value in the checkpoint.
    pub saved: String,
    /// The value in this run.
    pub now: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` was {}, and is {}", self.field, self.saved, self.now)
    }
}

/// An error of continuing from a checkpoint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The checkpoint's files are invalid, or cannot be read or written.
    #[error(transparent)]
    Files(CheckpointError),
    /// The folder holds no checkpoint.
    #[error(
        "{folder}: there is no complete checkpoint here to resume from; start the run without `--resume`, or use `--resume auto`"
    )]
    NoCheckpoint {
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// The folder holds checkpoints, but none is sound.
    #[error(
        "{folder}: no checkpoint here can be resumed:\n{}\nrestore a sound copy of one, resume another run's with `--resume PATH`, or start a new run without `--resume`",
        .problems.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n")
    )]
    NoneSound {
        /// The folder that was searched.
        folder: PathBuf,
        /// The problem with each checkpoint.
        problems: Vec<String>,
    },
    /// The folder holds no checkpoint of this step.
    #[error(
        "{folder}: there is no complete checkpoint of step {step}; {}",
        match .steps.as_slice() {
            [] => "this run has saved none: set `checkpoints` in its run file to save some".to_string(),
            steps => format!("there are those of the steps {steps:?}"),
        }
    )]
    NoStep {
        /// The folder that was searched.
        folder: PathBuf,
        /// The requested step.
        step: u64,
        /// The steps of the checkpoints in the folder.
        steps: Vec<u64>,
    },
    /// There is nothing at the path to resume from.
    #[error(
        "{path}: there is nothing here to resume from{}: write `latest`, `auto`, `step-N`, or the path of a checkpoint or of a run's output folder",
        .nearest.as_ref().map_or(String::new(), |name| format!(" (did you mean `{name}`?)"))
    )]
    NoPath {
        /// The path.
        path: PathBuf,
        /// The word that it resembles.
        nearest: Option<String>,
    },
    /// The path to resume from names something else than a checkpoint.
    #[error(
        "{path}: expected a checkpoint, such as `runs/a/checkpoints/step-00001000`, or the output folder of a run that saved one, found {found}"
    )]
    NotCheckpoint {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The optimizer's state cannot be kept on a disk.
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    /// The run was interrupted while it read the checkpoint.
    #[error("interrupted before the first update; nothing was written")]
    Interrupted,
    /// The trainer has no folder for checkpoints.
    #[error("checkpoints are kept in the output folder: give the trainer one with `.output(folder)`")]
    NoOutput,
    /// The trainer's state cannot be read.
    #[error("{file}: {reason}")]
    State {
        /// The trainer's file: `trainer.json`, or `trainer.ron` in an older checkpoint.
        file: &'static str,
        /// The expected and the actual content.
        reason: String,
    },
    /// An older version saved the trainer's state, in RON, and `firebrick` was built without the feature `ron`.
    #[error(
        "{path}: an older version of Firebrick wrote this, in RON: build the program with the feature `ron` of the crate `firebrick`, or resume with the program `firebrick`, which has it; later checkpoints are in JSON"
    )]
    NeedsRon {
        /// The trainer's file.
        path: PathBuf,
    },
    /// The checkpoint belongs to another model.
    #[error(
        "the checkpoint is of another model: {}; resume with the model that was saved", .0.join("; ")
    )]
    OtherModel(Vec<String>),
    /// The optimizer's state does not fit.
    #[error("the optimizer's state in the checkpoint does not fit this run: {reason}")]
    Optimizer {
        /// The expected and the actual content.
        reason: String,
    },
    /// Settings that the result depends on have changed.
    #[error(
        "the run differs from the saved one, and would not continue as that one did:\n{}\nresume with the settings that were saved, or allow the changes with `--allow-changes` (in Rust, `Trainer::allow_changes`)",
        .0.iter().map(|change| format!("  {change}")).collect::<Vec<_>>().join("\n")
    )]
    Changed(Vec<Change>),
    /// Settings that a run cannot change.
    #[error(
        "the run cannot continue from this checkpoint:\n{}\nstart a new run for these, in another output folder",
        .0.iter().map(|change| format!("  {change}")).collect::<Vec<_>>().join("\n")
    )]
    Impossible(Vec<Change>),
}

impl From<CheckpointError> for ResumeError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Stopped { .. } => Self::Interrupted,
            error => Self::Files(error),
        }
    }
}
