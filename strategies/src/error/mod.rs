//! The errors of a strategy, and of a composition of strategies.
//!
//! ```text
//! mod.rs      StrategyError, and the first fault of a run in places that cannot return an error
//! setting.rs  a setting that is out of range
//! ```

mod setting;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use firebrick_world::WorldError;
use thiserror::Error;

use crate::{PathError, UnfitFactors};

pub use setting::SettingError;

/// An invalid composition of strategies, or a failure that ends training.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum StrategyError {
    /// A setting is out of its range.
    #[error("{strategy}{} {error}", if error.setting.is_empty() { "" } else { ":" })]
    Setting {
        /// The strategy as written.
        strategy: &'static str,
        /// The setting and its range.
        error: SettingError,
    },
    /// The composition contains a technique twice.
    #[error("{0} is named twice: keep one of them")]
    Twice(&'static str),
    /// A stage held the gradients of a complete optimizer step.
    #[error(
        "{0} held the gradients back although the optimizer step is complete: a stage must answer the last micro-batch of a step with Apply or Skip"
    )]
    Held(&'static str),
    /// The device cannot compute in a dtype.
    #[error("{strategy}: {device} cannot compute in {dtype}; it can in {supported}")]
    Dtype {
        /// The strategy as written.
        strategy: &'static str,
        /// The device.
        device: String,
        /// The requested dtype.
        dtype: &'static str,
        /// The float dtypes that the device supports.
        supported: String,
    },
    /// A path pattern is invalid or matches nothing in this model.
    #[error("{strategy}: {error}")]
    Path {
        /// The strategy as written.
        strategy: &'static str,
        /// What is wrong with the pattern.
        error: PathError,
    },
    /// The model has no parameters of a kind that `Amp` should keep in f32.
    #[error(
        "Amp keeps the {kind} in f32, but the model has no {kind}: its parameters are {found}; name them by path instead"
    )]
    NothingKept {
        /// `norms`, `embeddings` or `head`.
        kind: &'static str,
        /// One parameter of each type in the model.
        found: String,
    },
    /// No product of a linear layer in a block was computed in 8 bits.
    #[error(
        "Amp(fp8) has no effect: no linear layer of a block multiplied in 8 bits, since {}; or write Amp(bf16)",
        cause_of_none_in_fp8(.unfit)
    )]
    NothingInFp8 {
        /// The weights of blocks with an axis that is no multiple of 16.
        unfit: Vec<String>,
    },
    /// Gradients overflow even at the minimum loss scale.
    #[error(
        "a gradient was infinite or not a number at the minimum loss scale of {scale}: f16 cannot hold this model's activations or gradients. Try `Amp::bf16()`, whose range is that of f32, where the device has it; or a lower learning rate or longer warmup, if the loss was rising; or keep the layers with the largest activations in f32 (`keep_f32`). If f32 overflows too, the data or the model makes a number that is not finite"
    )]
    MinimumScale {
        /// The scale.
        scale: f64,
    },
    /// Saved states belong to another composition.
    #[error(
        "the saved state is of {found}, but the next strategy is {expected}: resume with the strategies, in the order, that the state was saved with"
    )]
    OtherStage {
        /// The strategy that reads the state.
        expected: &'static str,
        /// The strategy that the state belongs to, or "nothing" at the end.
        found: String,
    },
    /// A saved state lacks a value.
    #[error(
        "the saved state of {stage} has no value {value:?}: it was written by another version, or damaged"
    )]
    NoValue {
        /// The strategy that reads the state.
        stage: String,
        /// The name of the missing value.
        value: String,
    },
    /// The strategy needs the number of bytes in use, and nothing counts them.
    #[error(
        "{0} needs to know how much memory is in use, which nothing counts here: make `firebrick::memory::Counting` the program's global allocator, or name what to recompute"
    )]
    NothingCounts(&'static str),
    /// A segment reads a tracked tensor that is not part of its input.
    #[error(
        "segment {segment} reads a tensor that carries a gradient but is not part of its input, so the gradient would be lost: make it part of the input that `Pass::segment` is given"
    )]
    Captured {
        /// The segment.
        segment: String,
    },
    /// A segment gives a different result when it runs again.
    #[error(
        "segment {segment} cannot be recomputed: run again, its result differs in {differ:.1}% of its elements{hint}; it draws random numbers of its own or keeps a state. Use firebrick's Dropout, or leave this block out of Recompute"
    )]
    Irreproducible {
        /// The segment.
        segment: String,
        /// The share of the elements that differ, in percent.
        differ: f64,
        /// Modules of the block that may be the cause, or empty.
        hint: String,
    },
    /// A block's parameter is read outside its segment, where it is not gathered.
    #[error(
        "`{parameter}` is read outside the segment of its block, where it is not gathered: read it in the closure of `Pass::segment`, or leave its block out of `Zero::blocks`"
    )]
    OutsideSegment {
        /// The parameter's path.
        parameter: String,
    },
    /// A clone of a parameter was set to require a gradient, or not to, before the parameter had arrived from other ranks.
    #[error(
        "a clone of `{parameter}` was set to require a gradient, or not to, before the new value had come from the other ranks: read \
         the parameter first, as in `param.val()`, or `detach` what the layer returns"
    )]
    SetOnTheWay {
        /// The parameter's path.
        parameter: String,
    },
    /// The model already has low-rank factors.
    #[error(
        "{strategy}: `{parameter}` is read through an adapter already: merge it first with `model.materialize()`, or leave {strategy} out"
    )]
    Reparameterized {
        /// The strategy as written.
        strategy: &'static str,
        /// The first such parameter.
        parameter: String,
    },
    /// A layer reads a matrix together with its factors, whose input should be dropped.
    #[error(
        "Lora has a dropout, but the layer that reads `{parameter}` does not drop the input of its factors: let the layer call `firebrick_strategies::adapted_linear`, as `firebrick_models::Linear` does, or leave the matrix out of `paths` or `dropout` out of Lora"
    )]
    NothingDropped {
        /// The matrix's path.
        parameter: String,
    },
    /// A table of embeddings is also the matrix of a linear layer, whose factors' input cannot be dropped.
    #[error(
        "Lora has a dropout, but `{parameter}` is also a table of embeddings, whose factors have no input to drop: leave the matrix out of `paths`, or `dropout` out of Lora"
    )]
    DropsEmbedding {
        /// The matrix's path as a layer's.
        parameter: String,
    },
    /// No module has the name of an attention projection.
    #[error(
        "Lora finds no projection of attention in the model, whose matrices are {found}: name those that it is to adapt, as in `Lora::rank(8).on([\"*.query.weight\"])`"
    )]
    NoProjections {
        /// Some of the model's matrices.
        found: String,
    },
    /// Factors to start from are not those that the strategy trains.
    #[error("Lora cannot start from {factors}: {error}")]
    Factors {
        /// The factors, by the folder that they were read from.
        factors: String,
        /// The difference.
        error: UnfitFactors,
    },
    /// No matrix can be packed.
    #[error(
        "Quantize finds no frozen matrix of a linear layer in the model's blocks, which are the elements of its lists: add `Lora` or `Freeze`, which freeze matrices, or leave it out"
    )]
    NothingQuantized,
    /// A parameter of the given model is not finite.
    #[error("{strategy}: `{parameter}` has numbers that are not finite: start from a sound model")]
    NotFinite {
        /// The strategy as written.
        strategy: &'static str,
        /// The parameter's path.
        parameter: String,
    },
    /// The ranks were given different models.
    #[error(
        "Quantize has packed other matrices on some ranks than on others: give every rank the same model"
    )]
    OtherBase,
    /// The strategy starts on a model that it has not adapted.
    #[error("{0} starts on a model that it has not adapted: call `Composition::adapt` before `Setup::new`")]
    NotAdapted(&'static str),
    /// A model says no plan for a tensor axis.
    #[error(
        "Mesh: `tensor` divides the layers of a model by its plan, and this model has none: return one from `Objective::tensor_plan`, or divide by `context` and by the stages of `Zero`"
    )]
    NoTensorPlan,
    /// A divided model does not go with another strategy.
    #[error("Mesh: the ranks that divide a model do not go with {0}: leave one of the two out")]
    NotWithParts(&'static str),
    /// Factors are attached to a matrix that ranks divide, outside the blocks of the model.
    #[error(
        "Mesh: `tensor` divides `{parameter}`, which is outside the model's blocks, so that nothing sums the gradients of its factors: name other matrices in `paths` of Lora, or train it whole with `also`"
    )]
    FactorsOutsideBlocks {
        /// The path of the matrix.
        parameter: String,
    },
    /// A divided layer outside segments reads positions that ranks divide, or has factors.
    #[error(
        "Mesh: layers that ranks divide run in `Pass::segment`, which sums the gradients of what all ranks have whole, and one does not: run its block in a segment"
    )]
    DividedLayerOutsideSegment,
    /// A pipeline does not go with a strategy that keeps parameters elsewhere.
    #[error(
        "Mesh: `pipeline` does not go with {0}, since each rank keeps its own blocks: use a lower stage, or `Offload(optimizer)`"
    )]
    NotWithPipeline(&'static str),
    /// The program is built so that a pass cannot leave the model behind a stage.
    #[error(
        "Mesh: `pipeline` leaves your `loss` behind the last block of a stage by unwinding, and this program is built with `panic = \"abort\"`: remove that line from the profile in Cargo.toml"
    )]
    StagesAbort,
    /// A pipeline does not go with a loss that asks a reference model.
    #[error(
        "Mesh: `pipeline` does not go with a loss that asks a reference model, such as `Dpo`: divide this model by the stages of `Zero`"
    )]
    NotCompared,
    /// A model does not run the blocks of a pipeline one after the other.
    #[error(
        "Mesh: `pipeline` divides blocks that run one after the other, each in `Pass::segment`, and `{block}` runs out of the order of the model's lists: divide this model by `tensor` or `context`, or by the stages of `Zero`"
    )]
    NotAPipeline {
        /// The path of the block.
        block: String,
    },
    /// A model has ended without some blocks of a pipeline.
    #[error(
        "Mesh: `pipeline` divides the elements of the model's lists, and the model has not run all of them in `Pass::segment`: divide this model by `tensor` or `context`, or by the stages of `Zero`"
    )]
    StageNotLeft,
    /// Something else than the next block reads what a block of a pipeline returns.
    #[error(
        "Mesh: `pipeline` sends what a block returns to the next one alone, and something else in this model reads it too, as a decoder reads its encoder: divide this model by `tensor` or `context`, or by the stages of `Zero`"
    )]
    StatesReadElsewhere,
    /// A block of a pipeline reads other tensors than it returns.
    #[error(
        "Mesh: `pipeline` sends what a block returns to the next one, and a block of this model reads no tensor like it: let its first input of as many axes be what the block before returns"
    )]
    UnlikeStates,
    /// A number could not be read from a device.
    #[error("a number could not be read from the device: {0}")]
    Read(String),
    /// A parameter that waits outside memory could not be read.
    #[error("a parameter could not be read: {0}")]
    OffloadedParam(String),
    /// No choice of segments fits the budget.
    #[error(
        "Recompute: a budget of {budget} bytes cannot be kept: the inputs of all segments take {needed} bytes. Raise it, make the micro-batch smaller, or, on a GPU, move the inputs to the host with `.offloaded()`"
    )]
    Budget {
        /// The budget in bytes.
        budget: usize,
        /// Bytes needed if every segment is recomputed.
        needed: usize,
    },
    /// The ranks cannot continue together.
    #[error(transparent)]
    World(#[from] WorldError),
}

impl StrategyError {
    /// Returns the error of a strategy whose setting is out of range.
    pub fn setting(strategy: &'static str, error: SettingError) -> Self {
        Self::Setting { strategy, error }
    }
}

fn cause_of_none_in_fp8(unfit: &[String]) -> String {
    match unfit {
        [] => "none read its weight in bf16, in a `Pass::segment`, by `firebrick_strategies::adapted_linear`, as \
               `firebrick_models::Linear` does"
            .into(),
        [first, ..] => format!(
            "each of their weights has an axis that is no multiple of 16, such as `{first}`: choose such widths"
        ),
    }
}

/// The first fault of a run in a place that cannot return an error: in a model's forward pass, in a step of a backward pass,
/// or when a lazy parameter is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Option<StrategyError>>>);

impl Faults {
    /// Keeps this fault, unless there is an earlier one.
    pub fn report(&self, fault: StrategyError) {
        self.first().get_or_insert(fault);
    }

    /// Returns the fault as an error, once.
    pub fn check(&self) -> Result<(), StrategyError> {
        self.first().take().map_or(Ok(()), Err)
    }

    fn first(&self) -> MutexGuard<'_, Option<StrategyError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
