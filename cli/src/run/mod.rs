//! A run file in RON.

mod changes;
mod check;
mod checkpoints_config;
mod data_run;
mod export;
mod families;
mod from_run_file;
mod inference;
mod launch;
mod launcher;
mod link_config;
mod many_ranks;
mod model_config;
mod param_groups;
mod parse;
mod part_of_run;
mod prepare;
mod registries;
mod ron_path;
pub(crate) mod ron_scan;
mod room;
mod saved_weights;
mod shapes;
mod strategies;

use std::path::PathBuf;

use burn::tensor::Device;
use firebrick_datasets::Amount;
use firebrick_strategies::optim::{BoxedOptimizer, Group};
use firebrick_strategies::{Float, Mesh};
use firebrick_tasks::{DataConfig, Dataset, TaskConfig};
use ron::extensions::Extensions;
use serde::{Deserialize, Serialize};

use crate::mlflow::MlflowConfig;
use firebrick::device::{self, DeviceError, Tuning};
use firebrick::{Schedule, with_training_settings};

pub(crate) use changes::settings;
pub use checkpoints_config::CheckpointsConfig;
pub use data_run::DataRun;
pub(crate) use data_run::local_data;
pub(crate) use export::{PRETRAINED, is_exported};
pub use families::Families;
pub use launch::Launched;
pub(crate) use launcher::Process;
pub use link_config::LinkConfig;
pub use model_config::ModelConfig;
pub(crate) use parse::{Overridden, Override};
pub(crate) use prepare::Parts;
use registries::ReadWith;
pub(crate) use registries::Registries;
pub(crate) use shapes::{Shape, parameters, shapes, skeleton};
pub use strategies::RunStrategy;
pub(crate) use strategies::{data_parallel, first_effect, in_order, recipes, strategies_line, sum, written};

with_training_settings! {
    seed: "default_seed",

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
        /// `auto`, `cpu`, `cuda`, `wgpu` or `vulkan`; the last three take an `:index` if there are several. Default:
        /// `auto`, the first available of cuda, rocm, metal, vulkan, wgpu and cpu.
        #[serde(default = "default_device")]
        pub device: String,
        /// The peak of a device in floating-point operations per second, in the dtype that the run computes in. With it, the
        /// run shows its [model FLOPs utilization](firebrick::Utilization). Default: that of the [known
        /// devices](firebrick::device::peak_flops); on others none is shown.
        pub peak_flops: Option<f64>,
        /// How thoroughly a GPU's kernels are tuned at their first use: `Quick`, `Balanced` or `Full`. What was tuned is
        /// kept for later starts. Default: `Balanced`.
        #[serde(default)]
        pub tuning: Tuning,
        /// The task. Default: `CausalLm()`, in windows of one long text.
        #[serde(default)]
        pub task: TaskConfig,
        /// The data and how it is cut into samples.
        pub data: DataConfig,
        /// The model.
        pub model: ModelConfig,
        /// A folder of factors that [`Lora`](firebrick::Lora) starts from, of an earlier run or of PEFT, for a `Pretrained`
        /// model. Default: new factors.
        pub adapter: Option<PathBuf>,
        /// One of the [registered optimizers](firebrick_strategies::optim::Optimizers). Weight decay applies to matrices;
        /// vectors (biases and the scales of norms) decay only if a [group](Group) says so.
        pub optimizer: BoxedOptimizer,
        /// Parameters with their own learning rate or weight decay. If several groups match a parameter, the first one
        /// counts. Default: none.
        #[serde(default)]
        pub param_groups: Vec<Group>,
        /// The factor that multiplies the learning rates of the blocks, once more for each block nearer to the input; see
        /// [`Groups::layer_decay`](firebrick_strategies::optim::Groups::layer_decay). Default: all blocks have the same
        /// rate.
        pub layer_decay: Option<f64>,
        /// The learning rate of each update.
        pub schedule: Schedule,
        /// How many samples an update takes.
        pub batch: BatchConfig,
        /// Evaluates on the first samples of the validation data only, this many. Default: on all.
        pub evaluate_samples: Option<usize>,
        /// Ranks that train together, over all processes: threads of this process, or of each one that `mpirun` started.
        /// Default: one for each process.
        pub ranks: Option<usize>,
        /// The axes that the ranks divide into, as in `(tensor: 2, context: 2)`: the strategy [`Mesh`]. Default: all ranks train on samples of
        /// their own.
        pub mesh: Option<Mesh>,
        /// Seconds that a rank waits for the others before the run ends. Default: 600.
        pub deadline: Option<u64>,
        /// Whether NCCL may sum and gather if each rank has its own CUDA device. Default: true.
        #[serde(default = "yes")]
        pub nccl: bool,
        /// A network to simulate between ranks that are threads, to see what a slow one does. Default: none.
        pub link: Option<LinkConfig>,
        /// The strategies. Their [order](firebrick_strategies::Order) follows from what they do, and what transforms gradients runs
        /// as it is written. Default: none.
        #[serde(default)]
        pub strategies: Vec<RunStrategy>,
        /// The folder that the run writes into.
        pub output: PathBuf,
        /// When the run saves checkpoints. Default: only when it is interrupted.
        #[serde(default)]
        pub checkpoints: CheckpointsConfig,
        /// The MLflow server that the run logs its numbers to. Default: none.
        pub mlflow: Option<MlflowConfig>,
        /// Text to generate at the end. Default: none.
        pub sample: Option<SampleConfig>,
        /// What the run was read with, which no file has.
        #[serde(skip)]
        pub(crate) registries: ReadWith,
    }
}

fn yes() -> bool {
    true
}

fn default_seed() -> u64 {
    Dataset::SEED
}

fn default_device() -> String {
    "auto".into()
}

/// How many samples an update takes: `micro · accumulate · ranks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Samples in a micro-batch. Either this or `micro_tokens`.
    pub micro: Option<usize>,
    /// Instead of `micro`: the most tokens of a micro-batch, padding included.
    pub micro_tokens: Option<usize>,
    /// Micro-batches in an update. Default: as `strategies` say, otherwise 1.
    pub accumulate: Option<usize>,
    /// The dtype in which their gradients are summed and held. Default: `f32`.
    pub accumulate_dtype: Option<Float>,
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

/// Text that the trained model generates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// The prompt. Default: a newline.
    pub prompt: String,
    /// Number of tokens to generate. Default: 200.
    pub tokens: usize,
    /// Sampling temperature: below 1 is more certain, above 1 more varied, and 0 takes the most likely token. Default:
    /// 0.8.
    pub temperature: f64,
    /// Samples from this many of the most likely tokens; 0 samples from all. Default: 0.
    pub top_k: usize,
    /// Samples from the fewest most likely tokens whose probabilities sum to at least this. Default: 1, all tokens.
    pub top_p: f64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { prompt: "\n".into(), tokens: 200, temperature: 0.8, top_k: 0, top_p: 1.0 }
    }
}

impl Run {
    /// Finds the device, with kernels tuned as the run asks for. Reports through `say` if none are kept from an earlier
    /// start. Also returns the device's full name.
    ///
    /// # Errors
    ///
    /// The device is not available.
    pub(crate) fn find_device(&self, say: impl Fn(&str)) -> Result<(Device, String), DeviceError> {
        device::set_tuning(self.tuning);
        let found = device::find(&self.device)?;
        if let Some(line) = device::kernels::first_start() {
            say(&line);
        }
        Ok(found)
    }
}

/// The extensions of RON that run files have: `Some(..)` may be left out, and the settings of a strategy stand directly in its parentheses.
fn extensions() -> Extensions {
    Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES
}
