//! Why a run cannot be planned.

use thiserror::Error;

use super::cluster::ClusterError;

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
