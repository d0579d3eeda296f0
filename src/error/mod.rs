//! The errors of a training run.
//!
//! ```text
//! mod.rs      TrainError: a run cannot start or continue
//! resume.rs   ResumeError: a run cannot be saved or resumed, and settings that have changed since it was saved
//! adapter.rs  AdapterError: a folder of adapters cannot be read
//! ```

mod adapter;
mod resume;

use std::path::PathBuf;

use burn::tensor::TensorReadError;
use firebrick_datasets::{DataError, counted};
use firebrick_strategies::{SettingError, SkipReason, StrategyError};
use firebrick_world::WorldError;
use thiserror::Error;

use crate::ScheduleError;
use crate::accounting::budget::OverBudget;
use crate::scratch::ScratchError;

pub use adapter::AdapterError;
pub use resume::{Change, ResumeError};

/// A training run cannot start or continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The strategies do not fit the model, the device, or each other.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The optimizer's state or parameters cannot be kept on a disk.
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    /// The adapters to start from cannot be read.
    #[error(transparent)]
    Adapters(#[from] AdapterError),
    /// The data cannot be read or batched.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model cannot compute its loss or its scores.
    #[error(transparent)]
    Model(Box<dyn std::error::Error + Send + Sync>),
    /// A schedule returned a rate that no update can use.
    #[error(
        "the learning rate of update {update} must be finite and at least 0, found {rate}: correct the schedule"
    )]
    LearningRate {
        /// The update, counted from 0.
        update: u64,
        /// The rate found.
        rate: f64,
    },
    /// A setting of the trainer is out of range.
    #[error("{0}")]
    Setting(SettingError),
    /// The model has no score of this name.
    #[error(
        "no score is called `{score}`: the best evaluation can be selected by {}",
        if known.is_empty() { "the loss alone, as this model has no scores".into() } else { known.join(", ") }
    )]
    Score {
        /// The score to select the best model by.
        score: String,
        /// The scores that the model has.
        known: Vec<&'static str>,
    },
    /// A score has the name of another score, or of the loss.
    #[error(
        "two numbers of an evaluation are called `{score}`: give the score of `Trainer::score` another name"
    )]
    ScoreName {
        /// The name.
        score: &'static str,
    },
    /// The optimizer clips gradients itself.
    #[error(
        "the optimizer clips each tensor's gradient by itself, which changes the direction of the update: build it without gradient clipping and write `.with(Clip::norm(..))`"
    )]
    OptimizerClips,
    /// No parameter is trainable.
    #[error(
        "no parameter is trained: the model itself, Freeze or Lora froze all of them; leave out a pattern"
    )]
    NothingTrained,
    /// No gradient reached a parameter.
    #[error(
        "the loss has no gradient for any trained parameter: compute it from the model's output, without detaching it"
    )]
    NoGradients,
    /// The objective does not support label smoothing.
    #[error(
        "label smoothing has no effect: the model's loss on this data is not over classes, or does not read `Pass::label_smoothing`; leave out label_smoothing, or compute the loss with `firebrick_models::smoothed_cross_entropy`"
    )]
    LabelsNotSmoothed,
    /// The mesh divides the tokens of a sample among ranks, but the model computes all of them on each rank.
    #[error(
        "the mesh divides the tokens of each sample among ranks, but the model's loss on this data does not: it would count each sample several times; leave out the mesh's `context`, or train a causal or masked language model (DeBERTa excepted); a model of your own computes the columns that `Pass::context_columns` returns"
    )]
    TokensNotDivided,
    /// The data compares the model with a reference model, but the model does not answer for one.
    #[error(
        "the loss compares the model with a reference model, but the model has no `Objective::reference`: implement it, or train a `firebrick_models::Preferring`"
    )]
    NoReference,
    /// The reference model is the one without adapters, but there are none.
    #[error(
        "the reference model is the one with its adapters off, but no strategy adapts the model: add Lora(..), or write `reference: Frozen`"
    )]
    NoAdapter,
    /// [`Objective::reference`](crate::Objective::reference) returned another number of numbers than samples have.
    #[error(
        "`Objective::reference` must return as many numbers for each of {samples} samples, found {found} numbers in all"
    )]
    ReferenceNumbers {
        /// Samples of the batch.
        samples: usize,
        /// Numbers that were returned.
        found: usize,
    },
    /// What another rank sent cannot be read.
    #[error(
        "another rank sent what cannot be read ({reason}): run the same version of the program on all ranks"
    )]
    Exchanged {
        /// What is wrong with it.
        reason: String,
    },
    /// The objective and the batch count different numbers of items.
    #[error(
        "the objective's loss counts {loss} items, but the batch counts {batch} supervised ones: both must count the labels that enter the sum"
    )]
    Items {
        /// The count in [`Loss::items`](crate::Loss::items).
        loss: usize,
        /// The count of [`Batch::items`](firebrick_datasets::Batch::items).
        batch: usize,
    },
    /// The objective's loss is in half precision.
    #[error(
        "the objective's loss is {0}: widen the logits with `.cast(FloatDType::F32)` before the loss, so that a sum over many items keeps its digits"
    )]
    LossDtype(String),
    /// An operation of the model got operands of different dtypes.
    #[error(
        "the model cannot compute in {dtype}: {operation}, after it read {after}. An operation takes operands of one dtype: let the layer cast its input to the dtype of its weights, as in `x.cast(FloatDType::from(self.weight.val().dtype()))`, or do not keep the parameter in f32"
    )]
    MixedDtypes {
        /// The dtype to which strategies cast the weights.
        dtype: &'static str,
        /// The operation that failed, and the backend's message.
        operation: String,
        /// The last parameter read before it, and its dtype.
        after: String,
    },
    /// Too many steps in a row were skipped.
    #[error(
        "{count} steps in a row were skipped ({reason}{}): the run has diverged; lower the learning rate, lengthen the warmup, clip the gradients, or start from a smaller loss scale, if there is one",
        first_on(*first)
    )]
    OnlySkips {
        /// Number of skipped steps.
        count: u64,
        /// The reason for the last skip.
        reason: String,
        /// The first rank whose loss was not finite, if there are several ranks.
        first: Option<usize>,
    },
    /// The device failed while a number was read.
    #[error("the device failed while a result was read: {0}")]
    Device(#[from] TensorReadError),
    /// A file of the run cannot be written or read.
    #[error("{path}: {doing}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// The system's error message.
        reason: String,
    },
    /// Another run is using the output folder.
    #[error("{0}: another run is using this folder; wait for it, or choose another output folder")]
    OutputInUse(PathBuf),
    /// The run ended before its first update, and the folder holds an earlier one.
    #[error(
        "the run ended before its first update; nothing was written, and the earlier run in {folder} is as it was"
    )]
    NoUpdate {
        /// The output folder.
        folder: PathBuf,
    },
    /// The output folder holds files that are not of a run.
    #[error(
        "{folder}: this folder holds {found:?} and no earlier run; choose another output folder, so that nothing of yours is replaced"
    )]
    ForeignOutput {
        /// The folder.
        folder: PathBuf,
        /// One of the foreign files.
        found: String,
    },
    /// The loss stayed non-finite for too many updates.
    #[error(
        "the loss has not been finite for {}{}: the run has diverged; lower the learning rate, lengthen the warmup, or clip the gradients. The weights of the best evaluation, if there was one, are in best.safetensors of the output folder",
        counted(*updates, "update"),
        first_on(*first)
    )]
    Diverged {
        /// Number of updates in a row with a non-finite loss.
        updates: u64,
        /// The rank on which it began, if there are several ranks.
        first: Option<usize>,
    },
    /// The validation loss is not finite at the end of the run.
    #[error(
        "the validation loss is {loss} after update {step}, the last: the run has diverged, or the validation data leads to a number that is not finite; lower the learning rate, lengthen the warmup, or clip the gradients. The weights of the best evaluation, if there was one, are in best.safetensors of the output folder"
    )]
    NotFinite {
        /// Updates made before the last evaluation.
        step: u64,
        /// Its loss.
        loss: f64,
    },
    /// Trained weights are not finite.
    #[error(
        "{} is infinite or not a number after the last update: the run has diverged, and its weights are not written; lower the learning rate, lengthen the warmup, or clip the gradients",
        parameter.as_ref().map_or("a weight on another rank".into(), |path| format!("a weight in `{path}`"))
    )]
    Weights {
        /// Path of the first such parameter, if this rank holds it.
        parameter: Option<String>,
    },
    /// Mixed precision would round a state that all copies of the model share.
    #[error(
        "`{path}` is a state that all copies of the model share, as the running means of batch normalisation are, and mixed precision would round it for all of them: use a norm without such a state, such as LayerNorm or GroupNorm, or train in f32"
    )]
    SharedState {
        /// Path of the state in the model.
        path: String,
    },
    /// The run exceeds its device budget.
    #[error(transparent)]
    OverBudget(#[from] Box<OverBudget>),
    /// The schedule is invalid, or does not fit a run of this length.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The run cannot resume from a checkpoint, or cannot be saved as one.
    #[error(transparent)]
    Resume(Box<ResumeError>),
    /// Several ranks train, but no strategy sums their gradients.
    #[error(
        "{ranks} ranks train, but no strategy sums their gradients, so each would train a model of its own: write `.with(Zero::stage(0))` before `Clip`"
    )]
    NotReduced {
        /// Number of ranks.
        ranks: usize,
    },
    /// An optimizer step has several micro-batches per rank, but no strategy sums their gradients.
    #[error(
        "an optimizer step has several micro-batches on a rank, and no strategy sums their gradients, so only those of the last one would be applied: write `.with(Accumulate(1))` before `Clip`. It sums all micro-batches of a step, also if `micro_tokens` cuts a rank's part of a global batch into more than one"
    )]
    NotSummed,
    /// A setting of the optimizer is out of range.
    #[error("the optimizer: {0}")]
    Optimizer(#[from] SettingError),
    /// The optimizer cannot update a shard.
    #[error(
        "the optimizer's update of an element of `{parameter}` depends on other elements, which stages 1 to 3 of Zero and the `tensor` axis of a mesh keep on other ranks: use AdamW, AdamW8bit, Adam, Lion, Sgd, Adan, AdaGrad or RmsProp for it, or `Zero::stage(0)` without such an axis"
    )]
    NotElementwise {
        /// The path of the first such parameter.
        parameter: String,
    },
    /// The optimizer panicked in a trial update, by which it is found whether it can update a shard.
    #[error(
        "the optimizer failed in a trial update of a few rows, which stages 1 to 3 of Zero and the `tensor` axis of a mesh make before they give each rank a part of a parameter: {reason}. If it needs whole parameters, use `Zero::stage(0)` without such an axis"
    )]
    TrialUpdate {
        /// The message of the panic.
        reason: String,
    },
    /// The trainer and a strategy name different ranks.
    #[error("the trainer's ranks are {trainer}, and those of its strategies {strategies}: define them once")]
    TwoWorlds {
        /// Ranks given to [`Trainer::over`](crate::Trainer::over).
        trainer: String,
        /// Ranks given to a strategy.
        strategies: String,
    },
    /// Ranks train on different data.
    #[error(
        "rank {rank} is at another position of the data than this rank: all ranks need the same data, seed, micro-batch and strategies"
    )]
    OtherData {
        /// The other rank.
        rank: usize,
    },
    /// Ranks have made different numbers of updates: a strategy skipped a step on some of them only.
    #[error(
        "rank {rank} has made {theirs} updates, and this rank {own}: a strategy skipped a step on some ranks after all \
         had agreed to make an update; it must decide before anything asks for the norm, or by numbers that all ranks share"
    )]
    OtherUpdates {
        /// The other rank.
        rank: usize,
        /// Its updates.
        theirs: u64,
        /// The updates of this rank.
        own: u64,
    },
    /// One of several ranks failed, which ends the run.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// The rank that failed.
        rank: usize,
        /// Its error.
        reason: Box<TrainError>,
    },
    /// One of several ranks panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// No strategy returned the whole trained model on the rank that asked for it.
    #[error("no strategy returned the whole model: `Stage::gather_full` must return it on the rank `root`")]
    NoModel,
    /// The system could not start a thread for a rank.
    #[error("the system cannot start a thread for the rank: {0}")]
    NoThread(String),
}

/// Formats the rank on which a failure began, as the end of a phrase.
fn first_on(rank: Option<usize>) -> String {
    rank.map_or_else(String::new, |rank| format!(", first on rank {rank}"))
}

impl From<ResumeError> for TrainError {
    fn from(error: ResumeError) -> Self {
        Self::Resume(Box::new(error))
    }
}

impl From<WorldError> for TrainError {
    fn from(error: WorldError) -> Self {
        Self::Strategy(error.into())
    }
}

impl TrainError {
    /// Returns whether the run was interrupted before its first update, so that nothing was written.
    pub fn is_interruption(&self) -> bool {
        match self {
            Self::Resume(error) => matches!(**error, ResumeError::Interrupted),
            Self::Rank { reason, .. } => reason.is_interruption(),
            _ => false,
        }
    }

    /// Returns whether training has diverged. All ranks return such an error at the same step.
    pub(crate) fn is_divergence(&self) -> bool {
        match self {
            Self::OnlySkips { reason, .. } => *reason == SkipReason::NonFinite.to_string(),
            Self::Diverged { .. } | Self::NotFinite { .. } | Self::Weights { .. } => true,
            _ => false,
        }
    }

    /// Builds a [`TrainError::File`] from any error.
    pub fn file(path: impl Into<PathBuf>, doing: &'static str, reason: impl ToString) -> Self {
        Self::File { path: path.into(), doing, reason: reason.to_string() }
    }
}
