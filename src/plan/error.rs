//! Why nothing can be planned.

use thiserror::Error;

/// A run that cannot be planned, or for which no micro-batch can be found.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Passes are traced on the CPU.
    #[error(
        "a plan traces a pass of the model on the CPU, and this program was built without it: build it with the \
         feature `cpu`"
    )]
    NoHost,
    /// There is nothing to trace.
    #[error(
        "the first {looked} micro-batches have nothing to learn from: look at them with `firebrick data`"
    )]
    NothingToLearn {
        /// How many were looked at.
        looked: usize,
    },
    /// The model panics with its first batch.
    #[error("the model failed with the first batch on the CPU: {0}")]
    Model(String),
    /// The batch is bounded by tokens.
    #[error("--find-batch looks for `batch.micro`, found `batch.micro_tokens`: name samples instead")]
    BoundedByTokens,
    /// Not even one sample.
    #[error(
        "not even a micro-batch of 1 sample can be trained with within {budget}: {reason}\n\
         `firebrick plan` without --find-batch tells which strategies would fit"
    )]
    NoBatchFits {
        /// Bytes, in words.
        budget: String,
        /// What the run of one sample ended with.
        reason: String,
    },
}
