//! The part of a run file that is about its data.

use serde::Deserialize;
use serde::de::IgnoredAny;

use firebrick_datasets::Amount;

use super::many_ranks::number_of_ranks;
use super::settled::Settled;
use super::{BatchConfig, DataConfig, Run, StrategyConfig, TaskConfig, default_seed};

/// What the data of a run depends on. It is read from the same files as a [`Run`], of which it
/// leaves out the model and how it is trained: a data set can be looked at before there is a model.
///
/// ```
/// use firebrick::DataRun;
///
/// let run = DataRun::parse("example", r#"(
///     task: TokenClassification(),
///     data: (path: "train.conll", tokenizer: File("tokenizer.json"), max_length: 128),
///     batch: (micro: 16),
/// )"#, &["batch.micro=8"])?;
/// assert_eq!(run.batch.micro, Some(8));
/// # Ok::<(), firebrick::RunError>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "Run", deny_unknown_fields)]
pub struct DataRun {
    /// Seeds the order of the samples, and masks.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// What is learned.
    #[serde(default)]
    pub task: TaskConfig,
    /// The data and how it is cut.
    pub data: DataConfig,
    /// How many samples make an update.
    pub batch: BatchConfig,
    /// The strategies, one of which may say how many micro-batches make an update.
    #[serde(default)]
    pub strategies: Vec<StrategyConfig>,
    /// Ranks that train together: samples are grouped by the global batch, which all of them share. Default: one
    /// for each process that a launcher started.
    #[serde(default)]
    pub ranks: Option<usize>,

    /// What is settled before the data is read.
    #[serde(skip)]
    pub(crate) settled: Settled,

    // The names that a run file may have besides.
    #[serde(default, rename = "device")]
    _device: Option<IgnoredAny>,
    #[serde(default, rename = "device_budget")]
    _device_budget: Option<IgnoredAny>,
    #[serde(default, rename = "model")]
    _model: Option<IgnoredAny>,
    #[serde(default, rename = "optimizer")]
    _optimizer: Option<IgnoredAny>,
    #[serde(default, rename = "param_groups")]
    _param_groups: Option<IgnoredAny>,
    #[serde(default, rename = "layer_decay")]
    _layer_decay: Option<IgnoredAny>,
    #[serde(default, rename = "schedule")]
    _schedule: Option<IgnoredAny>,
    #[serde(default, rename = "steps")]
    _steps: Option<IgnoredAny>,
    #[serde(default, rename = "epochs")]
    _epochs: Option<IgnoredAny>,
    #[serde(default, rename = "evaluate_every")]
    _evaluate_every: Option<IgnoredAny>,
    #[serde(default, rename = "early_stopping")]
    _early_stopping: Option<IgnoredAny>,
    #[serde(default, rename = "best_by")]
    _best_by: Option<IgnoredAny>,
    #[serde(default, rename = "checkpoints")]
    _checkpoints: Option<IgnoredAny>,
    #[serde(default, rename = "deadline")]
    _deadline: Option<IgnoredAny>,
    #[serde(default, rename = "nccl")]
    _nccl: Option<IgnoredAny>,
    #[serde(default, rename = "output")]
    _output: Option<IgnoredAny>,
    #[serde(default, rename = "sample")]
    _sample: Option<IgnoredAny>,
}

impl From<&Run> for DataRun {
    fn from(run: &Run) -> Self {
        Self {
            seed: run.seed,
            task: run.task.clone(),
            data: run.data.clone(),
            batch: run.batch.clone(),
            strategies: run.strategies.clone(),
            ranks: run.ranks,
            settled: Settled::default(),
            _device: None,
            _device_budget: None,
            _model: None,
            _optimizer: None,
            _param_groups: None,
            _layer_decay: None,
            _schedule: None,
            _steps: None,
            _epochs: None,
            _evaluate_every: None,
            _early_stopping: None,
            _best_by: None,
            _checkpoints: None,
            _deadline: None,
            _nccl: None,
            _output: None,
            _sample: None,
        }
    }
}

impl DataRun {
    /// What an update sees, on all ranks.
    pub(crate) fn global_batch(&self) -> Amount {
        self.batch.amount().times(self.micro_batches()).times(number_of_ranks(self.ranks).max(1))
    }

    /// Micro-batches in an update, however they are asked for.
    pub(crate) fn micro_batches(&self) -> usize {
        let strategies = self.strategies.iter().find_map(|strategy| match strategy {
            StrategyConfig::Accumulate(micro_batches) | StrategyConfig::AccumulateIn(micro_batches, _) => {
                Some(*micro_batches)
            }
            _ => None,
        });
        self.batch.accumulate.or(strategies).unwrap_or(1)
    }
}
