//! What can go wrong between `fit` and its result.

use std::path::PathBuf;

use burn::tensor::TensorReadError;
use firebrick_datasets::DataError;
use firebrick_strategies::{SkipReason, StrategyError, WorldError};
use thiserror::Error;

use crate::ScheduleError;
use crate::budget::OverBudget;
use crate::checkpoint::ResumeError;
use crate::decoding::DecodingError;
use crate::tensorboard::TensorBoardError;

/// A training run that cannot start, or cannot go on.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The strategies do not fit the model, the device, or one another.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The data cannot be read, or not be batched.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Texts cannot be written so.
    #[error(transparent)]
    Decoding(#[from] DecodingError),
    /// A setting of the trainer is out of its range.
    #[error("{setting} must be {expected}, found {found}")]
    Setting {
        /// The trainer's method or field.
        setting: &'static str,
        /// The range that it must be in.
        expected: &'static str,
        /// What it was.
        found: String,
    },
    /// The model has no score of this name.
    #[error(
        "no score is called `{score}`: the best evaluation can be told by {}",
        if known.is_empty() { "the loss alone, as this model has no scores".into() } else { known.join(", ") }
    )]
    Score {
        /// The score that was to decide.
        score: String,
        /// Those that the model has.
        known: Vec<&'static str>,
    },
    /// The optimizer clips by itself.
    #[error(
        "the optimizer clips each tensor's gradient by itself, which changes the direction of the update: build it without gradient clipping and write `.with(Clip::norm(..))`"
    )]
    OptimizerClips,
    /// No parameter has a gradient.
    #[error(
        "nothing is left to train: every parameter of the model is frozen, by the model itself, by Freeze or by Lora; leave out a pattern"
    )]
    NothingTrained,
    /// No gradient has reached a parameter.
    #[error(
        "the loss has no gradient of any parameter that is trained: compute it from what the model returns, and detach nothing on the way"
    )]
    NoGradients,
    /// The objective does not smooth its labels.
    #[error(
        "labels are to be smoothed, but the model's loss on this data is over no classes, or does not ask for `Pass::label_smoothing`: leave out label_smoothing, or compute the loss with `models::smoothed_cross_entropy`"
    )]
    LabelsNotSmoothed,
    /// The objective counted other items than the batch.
    #[error(
        "the objective's loss is over {loss} items, but the batch says that {batch} are supervised: both must count the labels that enter the sum"
    )]
    Items {
        /// What [`Loss::items`](crate::Loss::items) said.
        loss: usize,
        /// What [`Batch::items`](firebrick_datasets::Batch::items) said.
        batch: usize,
    },
    /// The objective's loss is in half precision.
    #[error(
        "the objective's loss is {0}: widen the logits with `.cast(FloatDType::F32)` before the loss, so that a sum over many items keeps its digits"
    )]
    LossDtype(String),
    /// The model mixes dtypes.
    #[error(
        "the model cannot compute in {dtype}: {operation}, after it read {after}. An operation takes operands of one dtype: let the layer cast its input to the dtype of its weights, as in `x.cast(FloatDType::from(self.weight.val().dtype()))`, or do not keep the parameter in f32"
    )]
    MixedDtypes {
        /// The dtype that strategies have cast the weights to.
        dtype: &'static str,
        /// The operation that failed, and the backend's own words.
        operation: String,
        /// The last parameter read before it, and its dtype.
        after: String,
    },
    /// A stage kept the gradients when the window was over.
    #[error(
        "{0} held the gradients back although the window is complete: a stage must answer the closing micro-batch with Apply or Skip"
    )]
    Held(&'static str),
    /// Nothing but skipped updates.
    #[error(
        "{count} updates in a row were skipped ({reason}{}): the run has diverged; lower the learning rate, lengthen the warmup, clip the gradients, or start from a smaller loss scale, if there is one",
        first_on(*first)
    )]
    OnlySkips {
        /// How many.
        count: u64,
        /// The reason of the last one.
        reason: String,
        /// The rank whose loss was the first that was not finite, where there are several.
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
        /// What was being done.
        doing: &'static str,
        /// The system's reason.
        reason: String,
    },
    /// Another run writes into the output folder.
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
    /// The output folder holds something else.
    #[error(
        "{folder}: this folder holds {found:?} and no earlier run; choose another output folder, so that nothing of yours is replaced"
    )]
    ForeignOutput {
        /// The folder.
        folder: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// The loss is no longer a number.
    #[error(
        "the loss has not been finite for {updates} updates{}: the run has diverged; lower the learning rate, lengthen the warmup, or clip the gradients. The weights of the lowest validation loss, if there was one, are in best.safetensors",
        first_on(*first)
    )]
    Diverged {
        /// Updates in a row from such a loss.
        updates: u64,
        /// The rank whose samples it began with, where there are several.
        first: Option<usize>,
    },
    /// The validation loss at the end is not a number.
    #[error(
        "the validation loss is {loss} after update {step}, the last: the run has diverged, or the validation data makes a number that is not finite; lower the learning rate, lengthen the warmup, or clip the gradients. The weights of the best evaluation, if there was one, are in best.safetensors"
    )]
    NotFinite {
        /// Updates made at the last evaluation.
        step: u64,
        /// Its loss.
        loss: f64,
    },
    /// Trained weights are no numbers any more.
    #[error(
        "{} is infinite or not a number after the last update: the run has diverged, and its weights are not written; lower the learning rate, lengthen the warmup, or clip the gradients",
        parameter.as_ref().map_or("a weight on another rank".into(), |path| format!("a weight in `{path}`"))
    )]
    Weights {
        /// The first such parameter, where this rank holds it.
        parameter: Option<String>,
    },
    /// A state that all copies of the model share would be rounded with the replica.
    #[error(
        "`{path}` is a state that all copies of the model share, as the running means of batch normalisation are, and mixed precision would round it for all of them: use a norm without such a state, such as LayerNorm or GroupNorm, or train in f32"
    )]
    SharedState {
        /// Where it stands in the model.
        path: String,
    },
    /// More on the device than it may be.
    #[error(transparent)]
    OverBudget(#[from] Box<OverBudget>),
    /// The schedule cannot be, or not in a run of this length.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The run cannot continue from a checkpoint, or not be saved as one.
    #[error(transparent)]
    Resume(Box<ResumeError>),
    /// The dashboard or a metric failed.
    #[error("the dashboard failed: {0}")]
    Dashboard(String),
    /// Several ranks train, and each would go its own way.
    #[error(
        "{ranks} ranks train, but no strategy sums their gradients, so that each would train a model of its own: write `.with(Zero::stage(0))` before `Clip`"
    )]
    NotReduced {
        /// How many.
        ranks: usize,
    },
    /// A window holds several micro-batches on a rank, and their gradients would replace one another.
    #[error(
        "a window holds several micro-batches on a rank, and no strategy sums their gradients, so that only those of the last would be applied: write `.with(Accumulate(1))` before `Clip`. It sums all micro-batches of a window, also where `micro_tokens` cuts a rank's part of a global batch into more than one"
    )]
    NotSummed,
    /// The optimizer cannot update a shard.
    #[error(
        "the optimizer's update of an element of `{parameter}` depends on other elements, which stages 1 to 3 of Zero keep on other ranks: use AdamW, AdamW8bit, Adam, Lion, Sgd, Adan, AdaGrad or RmsProp for it, or `Zero::stage(0)`"
    )]
    NotElementwise {
        /// The path of the first such parameter.
        parameter: String,
    },
    /// The trainer and a strategy name different ranks.
    #[error("the trainer's ranks are {trainer}, those of its strategies {strategies}: name them once")]
    TwoWorlds {
        /// As given to [`Trainer::over`](crate::Trainer::over).
        trainer: String,
        /// As given to a strategy.
        strategies: String,
    },
    /// Another rank trains on other samples.
    #[error(
        "rank {rank} is elsewhere in the data than this rank: all ranks must be given the same data, seed, micro-batch and strategies"
    )]
    OtherData {
        /// That rank.
        rank: usize,
    },
    /// One of several ranks failed, and with it the run.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// Which.
        rank: usize,
        /// What it met.
        reason: Box<TrainError>,
    },
    /// One of several ranks panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// A strategy keeps the trained model from the rank that asks for it.
    #[error("no strategy returned the whole model: `Stage::gather_full` must, on the rank `root`")]
    NoModel,
    /// The system starts no thread for a rank.
    #[error("the system starts no thread for the rank: {0}")]
    NoThread(String),
}

/// The rank that something began with, as the end of a phrase.
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

impl From<TensorBoardError> for TrainError {
    fn from(TensorBoardError { path, doing, error }: TensorBoardError) -> Self {
        Self::file(path, doing, error)
    }
}

impl TrainError {
    /// Whether the weights as they are cannot be trained further. All ranks meet such an error at the same step.
    pub(crate) fn is_divergence(&self) -> bool {
        match self {
            Self::OnlySkips { reason, .. } => *reason == SkipReason::NonFinite.to_string(),
            Self::Diverged { .. } | Self::NotFinite { .. } | Self::Weights { .. } => true,
            _ => false,
        }
    }

    /// A [`TrainError::File`], from any error.
    pub(crate) fn file(path: impl Into<PathBuf>, doing: &'static str, reason: impl ToString) -> Self {
        Self::File { path: path.into(), doing, reason: reason.to_string() }
    }
}
