//! A run file in RON.

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
mod param_group_config;
mod parse;
mod prepare;
mod problem;
mod recompute_config;
mod ron_path;
pub(crate) mod ron_scan;
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
use firebrick_strategies::optim::BoxedOptimizer;
use firebrick_strategies::{Accumulate, Adaptation, Clip, Freeze, Setup, Stages, Strategy, StrategyError};
use serde::{Deserialize, Serialize};

use firebrick::{ByteSize, Schedule};

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
pub use param_group_config::ParamGroupConfig;
pub(crate) use prepare::Parts;
pub use recompute_config::RecomputeConfig;
pub(crate) use settled::Settled;
pub(crate) use shapes::{Shape, parameters, shapes, skeleton};
pub use task_config::{LabelKind, Rows, TaskConfig};
pub use tokenize::Tokenized;
pub(crate) use trainable::{ForModel, Trainable};
pub(crate) use written::strategies_line;
pub use zero_config::ZeroConfig;

/// Everything that describes a run: what to train, on which data, and how.
///
/// ```
/// use firebrick_cli::Run;
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
/// # Ok::<(), firebrick_cli::RunError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Seeds the weights, the order of the samples and dropout. Default: 1337.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// `auto`, `cpu`, `cuda`, `wgpu` or `vulkan`; the last three take an `:index` if there are several. Default:
    /// `auto`, the first available of cuda, vulkan, wgpu and cpu.
    #[serde(default = "default_device")]
    pub device: String,
    /// The most bytes that may be on the device, as in `"2GB"`, `"512MiB"` or `2000000000`. A run that needs more stops
    /// with an error that suggests what would help. Default: no limit.
    #[serde(default)]
    pub device_budget: Option<ByteSize>,
    /// The task. Default: `CausalLm()`, in windows of one long text.
    #[serde(default)]
    pub task: TaskConfig,
    /// The data and how it is cut into samples.
    pub data: DataConfig,
    /// The model.
    pub model: ModelConfig,
    /// One of the [registered optimizers](firebrick_strategies::optim::Optimizers). Weight decay applies to matrices;
    /// vectors (biases and the scales of norms) decay only if a [group](ParamGroupConfig) says so.
    pub optimizer: BoxedOptimizer,
    /// Parameters with their own learning rate or weight decay. If several groups match a parameter, the first one
    /// counts. Default: none.
    #[serde(default)]
    pub param_groups: Vec<ParamGroupConfig>,
    /// The factor that multiplies the learning rates of the blocks, once more for each block nearer to the input; see
    /// [`Groups::layer_decay`](firebrick_strategies::optim::Groups::layer_decay). Default: all blocks have the same
    /// rate.
    #[serde(default)]
    pub layer_decay: Option<f64>,
    /// The learning rate of each update.
    pub schedule: Schedule,
    /// The share of each label that is spread evenly over all classes during training, at least 0 and below 1. Default:
    /// 0.
    #[serde(default)]
    pub label_smoothing: f64,
    /// How many samples an update takes.
    pub batch: BatchConfig,
    /// Number of updates. Either this or `epochs`.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Number of passes over the data. Either this or `steps`.
    #[serde(default)]
    pub epochs: Option<u64>,
    /// Updates between two evaluations. Default: at the end of each epoch.
    #[serde(default)]
    pub evaluate_every: Option<u64>,
    /// The metric that selects the best evaluation, for the best model, the best checkpoints and early stopping.
    /// Default: the validation loss.
    #[serde(default)]
    pub best_by: Option<String>,
    /// Number of evaluations without an improvement after which the run ends. Default: never.
    #[serde(default)]
    pub early_stopping: Option<usize>,
    /// Ranks that train together, over all processes: threads of this process, or of each one that `mpirun` started.
    /// Default: one for each process.
    #[serde(default)]
    pub ranks: Option<usize>,
    /// Seconds that a rank waits for the others before the run ends. Default: 600.
    #[serde(default)]
    pub deadline: Option<u64>,
    /// Whether NCCL may sum the gradients if the ranks are threads with a CUDA device each. Default: true.
    #[serde(default = "yes")]
    pub nccl: bool,
    /// The strategies, in the order in which they process the gradients. Default: none.
    #[serde(default)]
    pub strategies: Vec<StrategyConfig>,
    /// The folder that the run writes into.
    pub output: PathBuf,
    /// When the run saves checkpoints. Default: only when it is interrupted.
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

/// How many samples an update takes: `micro · accumulate · ranks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Samples in a micro-batch. Either this or `micro_tokens`.
    #[serde(default)]
    pub micro: Option<usize>,
    /// Instead of `micro`: the most tokens of a micro-batch, padding included.
    #[serde(default)]
    pub micro_tokens: Option<usize>,
    /// Micro-batches in an update. Default: as `strategies` say, otherwise 1.
    #[serde(default)]
    pub accumulate: Option<usize>,
    /// The dtype in which their gradients are summed and held. Default: `f32`.
    #[serde(default)]
    pub accumulate_dtype: Option<FloatConfig>,
}

impl BatchConfig {
    /// Returns the size of a micro-batch. Validation has ensured that exactly one setting is given.
    pub(crate) fn amount(&self) -> Amount {
        match (self.micro, self.micro_tokens) {
            (_, Some(tokens)) => Amount::Tokens(tokens),
            (micro, None) => Amount::Samples(micro.unwrap_or(1)),
        }
    }
}

/// A strategy of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StrategyConfig {
    /// Mixed precision: `Amp(bf16)`, or `Amp(dtype: f16, ..)` with settings.
    Amp(AmpConfig),
    /// Sums the gradients of this many micro-batches into an update.
    Accumulate(usize),
    /// Like `Accumulate`, but holds the sum in another dtype than f32: `AccumulateIn(16, bf16)`.
    AccumulateIn(usize, FloatConfig),
    /// Clips the gradients.
    Clip(ClipConfig),
    /// Recomputes activations in the backward pass.
    Recompute(RecomputeConfig),
    /// Averages the weights, and evaluates the average.
    Ema(EmaConfig),
    /// Trains on several ranks, and shards the training state.
    Zero(ZeroConfig),
    /// Keeps state in host memory: `Offload(optimizer)` or `Offload(parameters)`.
    Offload(OffloadConfig),
    /// Trains low-rank factors beside frozen matrices.
    Lora(LoraConfig),
    /// Freezes the parameters at these paths: `Freeze(["tokens"])`.
    Freeze(Vec<String>),
}

/// How gradients are clipped: `Clip(norm: 1.0)` or `Clip(value: 0.5)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipConfig {
    /// The largest L2 norm of all gradients together.
    #[serde(default)]
    pub norm: Option<f64>,
    /// The largest absolute value of each element.
    #[serde(default)]
    pub value: Option<f64>,
}

/// Text that the trained model generates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleConfig {
    /// The prompt. Default: a newline.
    #[serde(default = "default_prompt")]
    pub prompt: String,
    /// Number of tokens to generate. Default: 200.
    #[serde(default = "default_sample_tokens")]
    pub tokens: usize,
    /// Sampling temperature: below 1 is more certain, above 1 more varied, and 0 takes the most likely token. Default:
    /// 0.8.
    #[serde(default = "default_temperature")]
    pub temperature: f64,
    /// Samples from this many of the most likely tokens; 0 samples from all. Default: 0.
    #[serde(default)]
    pub top_k: usize,
    /// Samples from the fewest most likely tokens whose probabilities sum to at least this. Default: 1, all tokens.
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
    /// Returns the run with these parameters marked as fresh, because the model's folder lacks them.
    pub(crate) fn starting_anew(&self, fresh: &[String]) -> Self {
        let mut run = self.clone();
        for strategy in &mut run.strategies {
            if let StrategyConfig::Lora(lora) = strategy {
                lora.fresh = fresh.to_vec();
            }
        }
        run
    }

    /// Returns the strategies with those that the rest of the run file implies. `batch.accumulate` becomes an
    /// [`Accumulate`](StrategyConfig::Accumulate) before the first [`Clip`](StrategyConfig::Clip), which needs the
    /// whole window, or at the end of the list. Several ranks without a [`Zero`](StrategyConfig::Zero) get one of stage
    /// 0 behind it. Several ranks with `batch.micro_tokens` also get an `Accumulate` if there is none, since a rank's
    /// part of a window may need several micro-batches.
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

/// Evaluates an expression with the recipe of a strategy. Every use shares this one list, so none can miss a strategy.
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
    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        with_recipe!(self, recipe => Strategy::<M>::adapt(&recipe, model, adaptation))
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        with_recipe!(self, recipe => recipe.start(setup))
    }
}

impl ClipConfig {
    /// Builds the strategy, by value if one is given, otherwise by norm. Validation has ensured that exactly one is
    /// given.
    fn recipe(&self) -> Clip {
        match self.value {
            Some(value) => Clip::value(value),
            None => Clip::norm(self.norm.unwrap_or(f64::NAN)),
        }
    }
}
