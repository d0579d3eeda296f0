//! A run as a RON file.

mod amp_config;
mod attended;
mod changes;
mod check;
mod checkpoints_config;
mod data_config;
mod data_run;
mod ema_config;
mod error;
mod export;
mod family;
mod fits;
mod inference;
mod launch;
mod launcher;
mod load;
mod lora_config;
mod many_ranks;
mod model_config;
mod offload_config;
mod optimizer_check;
mod optimizer_config;
mod param_group_config;
mod parse;
mod prepare;
mod recompute_config;
mod ron_path;
mod ron_scan;
mod room;
mod saved_weights;
mod settled;
mod shapes;
mod task_config;
mod tokenize;
mod trainable;
mod written;
mod zero_config;

use std::path::PathBuf;

use firebrick_datasets::Amount;
use firebrick_strategies::{Accumulate, Adaptation, Clip, Freeze, Setup, Stage, Strategy, StrategyError};
use serde::{Deserialize, Serialize};

use crate::{ByteSize, Schedule};

pub use amp_config::{AmpConfig, FloatConfig, KeepConfig, LossScaleConfig, Precision};
pub use checkpoints_config::CheckpointsConfig;
pub use data_config::{Corpus, DataConfig, Paths, TokenizerConfig};
pub use data_run::DataRun;
pub use ema_config::EmaConfig;
pub use error::RunError;
pub(crate) use export::{PRETRAINED, is_exported};
pub(crate) use family::{Attention, Family};
pub use launch::Launched;
pub(crate) use launcher::Process;
pub(crate) use load::open;
pub use load::{Loaded, TaskData};
pub use lora_config::LoraConfig;
pub use model_config::{BertShape, LlamaShape, ModelConfig, T5Shape};
pub use offload_config::OffloadConfig;
pub use optimizer_config::OptimizerConfig;
pub use param_group_config::ParamGroupConfig;
pub(crate) use prepare::{Parts, skeleton};
pub use recompute_config::RecomputeConfig;
pub(crate) use settled::Settled;
pub(crate) use shapes::{Shape, shapes};
pub use task_config::{LabelKind, Rows, TaskConfig};
pub use tokenize::Tokenized;
pub(crate) use trainable::{ForModel, Trainable};
pub(crate) use written::strategies_line;
pub use zero_config::ZeroConfig;

/// Everything that describes a run: what is trained, on what, and how.
///
/// ```
/// use firebrick::Run;
///
/// let run = Run::parse("example", r#"(
///     data: (path: "input.txt", tokenizer: Characters, block: 64),
///     model: Gpt(layers: 4, heads: 4, width: 128),
///     optimizer: AdamW(weight_decay: 0.1),
///     schedule: Cosine(lr: 1e-3, min_lr: 1e-4, warmup: 100),
///     batch: (micro: 12),
///     steps: 2000,
///     strategies: [Amp(bf16), Clip(norm: 1.0)],
///     output: "runs/example",
/// )"#, &["batch.accumulate=2"])?;
/// assert_eq!(run.batch.accumulate, Some(2));
/// # Ok::<(), firebrick::RunError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Seeds the weights, the order of the samples and dropout. Default: 1337.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// `auto`, `cpu`, `cuda`, `wgpu` or `vulkan`, the last three with `:index` if there are
    /// several. Default: `auto`, the first of cuda, vulkan, wgpu and cpu that is there.
    #[serde(default = "default_device")]
    pub device: String,
    /// The most bytes that may be on the device, as in `"2GB"`, `"512MiB"` or `2000000000`: a run that
    /// would need more ends with what would help. Default: no limit.
    #[serde(default)]
    pub device_budget: Option<ByteSize>,
    /// What is learned. Default: `CausalLm()`, in windows of one long text.
    #[serde(default)]
    pub task: TaskConfig,
    /// The data and how it is cut.
    pub data: DataConfig,
    /// The model.
    pub model: ModelConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Parameters at another learning rate or weight decay; of several groups that name one, the first counts.
    /// Default: none.
    #[serde(default)]
    pub param_groups: Vec<ParamGroupConfig>,
    /// What the rates of the blocks are multiplied by, once more for each block nearer to the input; see
    /// [`Groups::layer_decay`](firebrick_strategies::optim::Groups::layer_decay). Default: all have the same.
    #[serde(default)]
    pub layer_decay: Option<f64>,
    /// The learning rate of each update.
    pub schedule: Schedule,
    /// The share of each label that is spread evenly over all classes while training, at least 0 and below 1.
    /// Default: 0.
    #[serde(default)]
    pub label_smoothing: f64,
    /// How many samples make an update.
    pub batch: BatchConfig,
    /// Updates to make. Either this or `epochs`.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Times to go through the data. Either this or `steps`.
    #[serde(default)]
    pub epochs: Option<u64>,
    /// Updates between two evaluations. Default: at the end of each epoch.
    #[serde(default)]
    pub evaluate_every: Option<u64>,
    /// The score that tells the best evaluation, for the best model, the best checkpoints and early stopping.
    /// Default: the validation loss.
    #[serde(default)]
    pub best_by: Option<String>,
    /// Evaluations without a better one after which the run ends. Default: never.
    #[serde(default)]
    pub early_stopping: Option<usize>,
    /// Ranks that train together, of all processes: threads of this one, or of each that `mpirun` started.
    /// Default: one for each process.
    #[serde(default)]
    pub ranks: Option<usize>,
    /// Seconds that a rank waits for the others before the run ends. Default: 600.
    #[serde(default)]
    pub deadline: Option<u64>,
    /// Whether NCCL may sum the gradients of ranks that are threads with a CUDA device each. Default: true.
    #[serde(default = "yes")]
    pub nccl: bool,
    /// The strategies, in the order in which gradients meet them. Default: none.
    #[serde(default)]
    pub strategies: Vec<StrategyConfig>,
    /// The folder that the run writes into.
    pub output: PathBuf,
    /// When it is saved so that it can be resumed. Default: where it is interrupted.
    #[serde(default)]
    pub checkpoints: CheckpointsConfig,
    /// Text to generate at the end. Default: none.
    #[serde(default)]
    pub sample: Option<SampleConfig>,
}

fn yes() -> bool {
    true
}

fn default_seed() -> u64 {
    1337
}

fn default_device() -> String {
    "auto".into()
}

/// How many samples make an update: `micro · accumulate · ranks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Samples that go through the model at once. Either this or `micro_tokens`.
    #[serde(default)]
    pub micro: Option<usize>,
    /// Instead, as many samples as have at most so many tokens, padding included.
    #[serde(default)]
    pub micro_tokens: Option<usize>,
    /// Micro-batches in an update. Default: what `strategies` say, or else 1.
    #[serde(default)]
    pub accumulate: Option<usize>,
    /// The dtype that their gradients are summed and held in. Default: `f32`.
    #[serde(default)]
    pub accumulate_dtype: Option<FloatConfig>,
}

impl BatchConfig {
    /// How much goes through the model at once; that only one is given has been checked.
    pub(crate) fn amount(&self) -> Amount {
        match (self.micro, self.micro_tokens) {
            (_, Some(tokens)) => Amount::Tokens(tokens),
            (micro, None) => Amount::Samples(micro.unwrap_or(1)),
        }
    }
}

/// One strategy of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StrategyConfig {
    /// Mixed precision: `Amp(bf16)`, or `Amp(dtype: f16, ..)` with settings.
    Amp(AmpConfig),
    /// Sums so many micro-batches into an update.
    Accumulate(usize),
    /// The same, with the sum held in another dtype than f32: `AccumulateIn(16, bf16)`.
    AccumulateIn(usize, FloatConfig),
    /// Bounds the gradients.
    Clip(ClipConfig),
    /// Recomputes activations in the backward pass.
    Recompute(RecomputeConfig),
    /// Averages the weights, and evaluates the average.
    Ema(EmaConfig),
    /// Trains on many ranks, and shards what they hold.
    Zero(ZeroConfig),
    /// Keeps state on the host: `Offload(optimizer)` or `Offload(parameters)`.
    Offload(OffloadConfig),
    /// Trains factors of low rank beside frozen matrices.
    Lora(LoraConfig),
    /// Leaves the parameters at these paths as they are: `Freeze(["tokens"])`.
    Freeze(Vec<String>),
}

/// What is bounded: `Clip(norm: 1.0)` or `Clip(value: 0.5)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipConfig {
    /// The L2 norm of all gradients together.
    #[serde(default)]
    pub norm: Option<f64>,
    /// Each element.
    #[serde(default)]
    pub value: Option<f64>,
}

/// Text that the trained model writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleConfig {
    /// What it starts from. Default: a newline.
    #[serde(default = "default_prompt")]
    pub prompt: String,
    /// Tokens to write. Default: 200.
    #[serde(default = "default_sample_tokens")]
    pub tokens: usize,
    /// Below 1 more certain, above 1 more varied, 0 the most likely token. Default: 0.8.
    #[serde(default = "default_temperature")]
    pub temperature: f64,
    /// Draws from so many of the most likely tokens; 0 from all. Default: 0.
    #[serde(default)]
    pub top_k: usize,
    /// Draws from the fewest of the most likely tokens that together are as probable as this. Default: 1, all.
    #[serde(default = "default_top_p")]
    pub top_p: f64,
}

fn default_top_p() -> f64 {
    1.0
}

fn default_prompt() -> String {
    "\n".into()
}

fn default_sample_tokens() -> usize {
    200
}

fn default_temperature() -> f64 {
    0.8
}

impl Run {
    /// The run of a model whose parameters at these paths start anew, as its folder lacks them.
    pub(crate) fn starting_anew(&self, fresh: &[String]) -> Self {
        let mut run = self.clone();
        for strategy in &mut run.strategies {
            if let StrategyConfig::Lora(lora) = strategy {
                lora.fresh = fresh.to_vec();
            }
        }
        run
    }

    /// The strategies with `batch.accumulate` in its place: after what casts, before what needs
    /// the whole window. Several ranks without a [`Zero`](StrategyConfig::Zero) get that of stage 0, behind it; with
    /// `batch.micro_tokens` they get an [`Accumulate`](StrategyConfig::Accumulate) where there is none, since a
    /// rank's part of a window may need several micro-batches.
    pub fn composed(&self) -> Vec<StrategyConfig> {
        let mut strategies = self.strategies.clone();
        let is_sum = |strategy: &StrategyConfig| {
            matches!(strategy, StrategyConfig::Accumulate(_) | StrategyConfig::AccumulateIn(..))
        };
        let needs_sum = self.windows_vary() && !strategies.iter().any(is_sum);
        let mut before_clip = |strategy: StrategyConfig| {
            let is_clip = |strategy: &StrategyConfig| matches!(strategy, StrategyConfig::Clip(_));
            let place = strategies.iter().position(is_clip).unwrap_or(strategies.len());
            strategies.insert(place, strategy);
        };
        if let Some(micro_batches) = self.batch.accumulate.or(needs_sum.then_some(1)) {
            before_clip(match self.batch.accumulate_dtype {
                None => StrategyConfig::Accumulate(micro_batches),
                Some(dtype) => StrategyConfig::AccumulateIn(micro_batches, dtype),
            });
        }
        let is_zero = |strategy: &StrategyConfig| matches!(strategy, StrategyConfig::Zero(_));
        if self.number_of_ranks() > 1 && !self.strategies.iter().any(is_zero) {
            before_clip(StrategyConfig::Zero(0.into()));
        }
        strategies
    }
}

/// Does something with the recipe that a strategy of the list is. The list has each strategy once, for all that is
/// done, so that none can be left out of a part of it.
macro_rules! with_recipe {
    ($strategy:expr, $recipe:ident => $does:expr) => {
        match $strategy {
            StrategyConfig::Amp(amp) => {
                let $recipe = amp.recipe();
                $does
            }
            StrategyConfig::Accumulate(micro_batches) => {
                let $recipe = Accumulate(*micro_batches);
                $does
            }
            StrategyConfig::AccumulateIn(micro_batches, dtype) => {
                let $recipe = Accumulate(*micro_batches).held_in((*dtype).into());
                $does
            }
            StrategyConfig::Clip(clip) => {
                let $recipe = clip.recipe();
                $does
            }
            StrategyConfig::Recompute(recompute) => {
                let $recipe = recompute.recipe();
                $does
            }
            StrategyConfig::Ema(ema) => {
                let $recipe = ema.recipe();
                $does
            }
            StrategyConfig::Offload(offload) => {
                let $recipe = offload.recipe();
                $does
            }
            StrategyConfig::Zero(zero) => {
                let $recipe = zero.recipe();
                $does
            }
            StrategyConfig::Lora(lora) => {
                let $recipe = lora.recipe();
                $does
            }
            StrategyConfig::Freeze(paths) => {
                let $recipe = Freeze::paths(paths.clone());
                $does
            }
        }
    };
}

impl<M: burn::module::Module + 'static> Strategy<M> for StrategyConfig {
    type Stage = Box<dyn Stage<M>>;

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        with_recipe!(self, recipe => Strategy::<M>::adapt(&recipe, model, adaptation))
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError> {
        with_recipe!(self, recipe => Ok(Box::new(recipe.start(setup)?)))
    }
}

impl ClipConfig {
    /// The norm, unless a value is given; that only one is, has been checked.
    fn recipe(&self) -> Clip {
        match self.value {
            Some(value) => Clip::value(value),
            None => Clip::norm(self.norm.unwrap_or(f64::NAN)),
        }
    }
}
