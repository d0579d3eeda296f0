//! What a strategy does, as far as others must know.

use std::path::PathBuf;

use burn::tensor::FloatDType;
use firebrick_kernels::packed::Packing;
use serde::{Deserialize, Serialize};

use crate::{PathError, Paths, Pipelined};

pub use crate::Reduces;

/// What a strategy does to gradients, memory and traffic.
///
/// It is computed from the strategy's settings alone. [Starting](crate::Composition::start) a composition adds it to the
/// [setup](crate::Setup), which knows the [order](crate::Order) of a composition; a plan computes bytes from it; a
/// run file is completed by it; and a resumed run learns from it what must stay as it was.
///
/// ```
/// use firebrick_strategies::{Accumulate, Clip, Effects, StrategyRecipe};
///
/// let effects: Effects = Accumulate(4).effects();
/// assert_eq!(effects.sums.unwrap().micro_batches, 4);
/// assert_eq!(Clip::norm(1.0).effects(), Effects::of("Clip"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Effects {
    /// The strategy's name as users write it.
    pub strategy: &'static str,
    /// It sums the micro-batches of an optimizer step.
    pub sums: Option<Sums>,
    /// It keeps the replica in another dtype than the master.
    pub casts: Option<Casts>,
    /// It sums gradients over the ranks.
    pub reduces: Option<Reduces>,
    /// It divides the tokens of each sample among so many ranks.
    pub context: Option<usize>,
    /// It divides layers among so many ranks.
    pub tensor: Option<usize>,
    /// It divides blocks among so many ranks.
    pub pipeline: Option<Pipelined>,
    /// It keeps state in host memory.
    pub offloads: Option<Offloads>,
    /// It moves gradients and replicas between host and device, so many bytes in one copy, unless a tensor alone has more.
    pub moves: Option<usize>,
    /// It moves the gradients of an update once, added up, rather than those of each micro-batch.
    pub moves_each_update: bool,
    /// It keeps the optimizer's state on a disk, and the parameters of blocks if it [offloads](Self::offloads) them.
    pub on_disk: Option<OnDisk>,
    /// It recomputes activations.
    pub recomputes: Option<Recomputes>,
    /// It provides [weights to evaluate](crate::Stage::averaged) instead of the master.
    pub averages: bool,
    /// It [adapts](crate::Strategy::adapted) the model: which parameters are trained depends on it.
    pub adapts: bool,
    /// It keeps frozen matrices packed, in this form.
    pub quantizes: Option<Packing>,
    /// What a resumed run must keep of it.
    pub result: OnResult,
    /// The paths of parameters and modules that its settings name.
    pub paths: Vec<String>,
}

/// The sum of the micro-batches of an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// Micro-batches per optimizer step.
    pub micro_batches: usize,
    /// The dtype in which the sum is held.
    pub dtype: FloatDType,
}

/// The dtypes that forward passes compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Casts {
    /// The dtype of the replica, and of the gradients before the strategy.
    pub replica: FloatDType,
    /// The dtype of evaluation.
    pub evaluation: FloatDType,
    /// Whether linear layers of blocks multiply in 8 bits in training.
    pub in_fp8: bool,
}

/// What host memory keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offloads {
    /// The optimizer's state and the master.
    Optimizer,
    /// The same, and the replica, which is fetched block by block.
    Parameters,
}

/// A disk that keeps the optimizer's state, and perhaps the parameters of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// The folder of the file.
    pub folder: PathBuf,
    /// The most bytes of parameters that are read and written together, with their state.
    pub bucket_bytes: usize,
}

/// What is recomputed in the backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Recomputes {
    /// The blocks that run again.
    pub blocks: RecomputedBlocks,
    /// Whether their inputs are kept in host memory.
    pub offloaded: bool,
}

/// The blocks that run again in the backward pass.
#[derive(Clone, Debug, PartialEq)]
pub enum RecomputedBlocks {
    /// Every n-th, beginning with the first.
    Every(usize),
    /// Those at these paths.
    Paths(Vec<String>),
    /// As few as keep the activations of all blocks within this many bytes.
    Within(usize),
    /// None: the operations between matrix products run again.
    Elementwise,
}

impl RecomputedBlocks {
    /// Returns whether all blocks are treated alike.
    pub fn are_alike(&self) -> bool {
        matches!(self, Self::Every(1) | Self::Elementwise)
    }

    /// Returns whether each block of a model runs again, in the order of a pass. `held` returns the bytes that all
    /// blocks hold if so many of them run again.
    ///
    /// # Errors
    ///
    /// A path does not occur in the model.
    pub fn of(&self, paths: &Paths, held: impl Fn(usize) -> f64) -> Result<Vec<bool>, PathError> {
        let blocks: Vec<&str> = paths.blocks().collect();
        let all = 0..blocks.len();
        Ok(match self {
            Self::Every(count) => all.map(|index| index.is_multiple_of((*count).max(1))).collect(),
            Self::Paths(patterns) => {
                let mut named = Vec::new();
                for pattern in patterns {
                    named.extend(paths.modules_matching(pattern)?);
                }
                blocks.iter().map(|block| named.contains(block)).collect()
            }
            Self::Within(bytes) => {
                // All blocks are alike, so the first ones are taken.
                let fewest = all.clone().find(|again| held(*again) <= *bytes as f64).unwrap_or(blocks.len());
                all.map(|index| index < fewest).collect()
            }
            Self::Elementwise => vec![false; blocks.len()],
        })
    }
}

/// What a resumed run must keep of a strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnResult {
    /// Nothing: the result is the same without it, beyond rounding.
    #[default]
    Free,
    /// The result depends on the strategy, and on its place among others that transform gradients.
    Changes,
    /// The result depends on the strategy, wherever it stands.
    ChangesAnywhere,
    /// The parameters depend on the strategy, wherever it stands: a run cannot continue with another one.
    Parameters,
}

impl Effects {
    /// Creates the effects of a strategy that only transforms gradients, and so changes the result.
    pub fn of(strategy: &'static str) -> Self {
        Self { result: OnResult::Changes, ..Self::none(strategy) }
    }

    /// Creates the effects of a strategy that leaves the result as it is.
    pub fn none(strategy: &'static str) -> Self {
        Self {
            strategy,
            sums: None,
            casts: None,
            reduces: None,
            context: None,
            tensor: None,
            pipeline: None,
            offloads: None,
            moves: None,
            moves_each_update: false,
            on_disk: None,
            recomputes: None,
            averages: false,
            adapts: false,
            quantizes: None,
            result: OnResult::Free,
            paths: Vec::new(),
        }
    }

    /// Returns whether the memory of a forward and backward pass depends on the strategy.
    pub fn acts_in_pass(&self) -> bool {
        let shards_gradients = self.reduces.is_some_and(|reduces| reduces.stage >= 2);
        let acts = self.casts.is_some() || self.recomputes.is_some() || self.offloads.is_some();
        acts || self.adapts || shards_gradients || self.context.is_some() || self.tensor.is_some()
    }

    /// Returns whether the execution of a step changes gradients, or where they are, on their way through the strategy.
    pub(crate) fn meets_gradients(&self) -> bool {
        self.reduces.is_some() || self.offloads.is_some() || self.sums.is_some() || self.casts.is_some()
    }

    /// Returns whether the strategies are the same technique, which can stand only once.
    pub(crate) fn repeats(&self, other: &Self) -> bool {
        other.sums.is_some() && self.sums.is_some()
            || other.casts.is_some() && self.casts.is_some()
            || other.reduces.is_some() && self.reduces.is_some()
            || other.context.is_some() && self.context.is_some()
            || other.offloads.is_some() && self.offloads.is_some()
            || other.recomputes.is_some() && self.recomputes.is_some()
            || other.averages && self.averages
            || other.quantizes.is_some() && self.quantizes.is_some()
    }

    /// Returns whether a setting names a block by its number, as in `blocks.3`.
    pub fn names_a_block(&self) -> bool {
        self.paths.iter().any(|path| path.split('.').any(|part| part.parse::<usize>().is_ok()))
    }
}
