//! Why a run cannot be planned.

use std::path::PathBuf;

use thiserror::Error;

use super::ClusterError;

/// The run cannot be planned, or no micro-batch fits.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// There is no supervised micro-batch to trace.
    #[error(
        "the first {looked} micro-batches have nothing to learn from: look at them with `firebrick data`"
    )]
    NothingToLearn {
        /// Number of micro-batches that were examined.
        looked: usize,
    },
    /// The model panics on its first batch.
    #[error("the model failed with the first batch on the CPU: {0}")]
    Model(String),
    /// The machine cannot hold the blocks that are traced.
    #[error(
        "a plan measures a pass through {layers} of the model's blocks and what is in none, of full width, whose parameters \
         and gradients take {needed} in f32; this machine has {available}: plan on one with more memory"
    )]
    TooWide {
        /// Number of blocks.
        layers: usize,
        /// Bytes, as text.
        needed: String,
        /// Bytes of the machine's memory, as text.
        available: String,
    },
    /// The cluster does not fit the run.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Passes with few rows do not tell what more rows take.
    #[error(
        "passes with few rows do not tell what others take in this model: plan a run file with its data, without --tokens"
    )]
    Rows,
    /// A program's own task has no rows that stand for its data.
    #[error(
        "--tokens makes data for the tasks of this program, and `{task}` is one of your own: give the data's path"
    )]
    NoStandIn {
        /// The task.
        task: &'static str,
    },
    /// The rows that stand for the data are too short, or too many.
    #[error(
        "rows that stand for the data have from 2 to {most} tokens, and an update at most {most} in all; found {rows} rows of \
         {tokens}: lower --tokens, --batch or `batch.accumulate`"
    )]
    StandInRows {
        /// Tokens of a row.
        tokens: usize,
        /// Rows of an update.
        rows: usize,
        /// The most tokens.
        most: usize,
    },
    /// What stands for the data cannot be written.
    #[error("{}: cannot make data to plan with: {reason}", path.display())]
    StandIn {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        reason: String,
    },
    /// Nothing says what a micro-batch has to fit into.
    #[error(
        "--find-batch looks for the micro-batch that fits, and what a rank may have on {device} is not known: give it, as in \
         --budget 24GB, or try real steps on the device with --find-batch=steps"
    )]
    NoBudget {
        /// The device.
        device: String,
    },
    /// The batch is bounded by tokens.
    #[error("--find-batch looks for `batch.micro`, found `batch.micro_tokens`: name samples instead")]
    BoundedByTokens,
    /// Not even one sample fits.
    #[error(
        "not even a micro-batch of 1 sample can be trained with within {budget}: {reason}\n\
         `firebrick plan` without --find-batch tells which strategies would fit"
    )]
    NoBatchFits {
        /// The budget in bytes, as text.
        budget: String,
        /// The error of the run with one sample.
        reason: String,
    },
}
