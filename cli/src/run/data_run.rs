//! The data part of a run file.

use std::path::Path;

use serde::{Deserialize, Deserializer};

use burn::train::Interrupter;
use firebrick::TrainError;
use firebrick::saving::Staged;
use firebrick_datasets::Amount;
use firebrick_strategies::Mesh;
use firebrick_tasks::{
    DataConfig, Dataset, LoadError, Loaded, Paths, Preview, Settled, TaskConfig, Tokenized, TokenizerConfig,
    attended,
};

use super::from_run_file::FromRunFile;
use super::launcher::{Process, data_ranks};
use super::part_of_run::part_of_run;
use super::{BatchConfig, Run, RunStrategy, default_seed, first_effect};
use crate::RunError;
use crate::hub::{FileSet, HubError, local_folder, local_paths};

/// The data part of a [`Run`]: everything that the data depends on, without the model and the training settings. It is a
/// [`Dataset`] whose paths may be on the Hub, and whose batches are those of a run's strategies and ranks.
///
/// A program sets it and gets the batches of a task:
///
/// ```no_run
/// use firebrick_cli::{DataConfig, DataRun, TokenClassificationTask, TokenizerConfig};
/// use firebrick_datasets::collators::LabeledBatch;
///
/// let data = DataConfig::new("train.conll", TokenizerConfig::File("tokenizer.json".into()));
/// let loaded = DataRun::new(TokenClassificationTask::default(), data, 16).load(|doing| eprintln!("{doing}"))?;
/// let batches = loaded.data.batches::<LabeledBatch>();
/// # Ok::<(), firebrick_cli::RunError>(())
/// ```
///
/// It is also read from run files, so you can inspect a data set before there is a model:
///
/// ```
/// use firebrick_cli::DataRun;
///
/// let run = DataRun::parse("example", r#"(
///     task: TokenClassification(),
///     data: (path: "train.conll", tokenizer: File("tokenizer.json"), max_length: 128),
///     batch: (micro: 16),
/// )"#, &["batch.micro=8"])?;
/// assert_eq!(run.batch.micro, Some(8));
/// # Ok::<(), firebrick_cli::RunError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DataRun {
    /// Seeds the order of the samples and the masking.
    pub seed: u64,
    /// The task.
    pub task: TaskConfig,
    /// The data and how it is cut into samples.
    pub data: DataConfig,
    /// How many samples an update takes.
    pub batch: BatchConfig,
    /// The strategies; one of them may set the number of micro-batches per update.
    pub strategies: Vec<RunStrategy>,
    /// Ranks that train together. They share the global batch by which samples are grouped. Default: one for each
    /// process that a launcher started.
    pub ranks: Option<usize>,
    /// The number of samples of the validation data that are evaluated, its first ones. Default: all.
    pub evaluate_samples: Option<usize>,
    /// Settings that are resolved before the data is read.
    pub(crate) settled: Settled,
}

/// The fields of a run file that the data depends on.
#[derive(Deserialize)]
struct Fields {
    #[serde(default = "default_seed")]
    seed: u64,
    #[serde(default)]
    task: TaskConfig,
    data: DataConfig,
    batch: BatchConfig,
    #[serde(default)]
    strategies: Vec<RunStrategy>,
    ranks: Option<usize>,
    mesh: Option<Mesh>,
    evaluate_samples: Option<usize>,
}

impl<'de> Deserialize<'de> for DataRun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        part_of_run::<Fields, D>(deserializer).map(Self::from)
    }
}

impl From<Fields> for DataRun {
    fn from(fields: Fields) -> Self {
        let Fields { seed, task, data, batch, mut strategies, ranks, mesh, evaluate_samples } = fields;
        strategies.extend(mesh.map(|mesh| RunStrategy::new("Mesh", mesh)));
        Self { seed, task, data, batch, strategies, ranks, evaluate_samples, settled: Settled::default() }
    }
}

impl From<&Run> for DataRun {
    fn from(run: &Run) -> Self {
        let Run { seed, task, data, batch, strategies, ranks, evaluate_samples, .. } = run.clone();
        Self { seed, task, data, batch, strategies, ranks, evaluate_samples, settled: Settled::default() }
    }
}

impl DataRun {
    /// Returns the size of the global batch, over all ranks.
    pub(crate) fn global_batch(&self) -> Amount {
        self.batch.amount().times(self.micro_batches()).times(data_ranks(self.ranks, &self.strategies))
    }

    /// Returns the number of micro-batches in an update, from whichever setting gives it.
    pub(crate) fn micro_batches(&self) -> usize {
        let strategies =
            first_effect(&self.strategies, |effects| effects.sums).map(|sums| sums.micro_batches);
        self.batch.accumulate.or(strategies).unwrap_or(1)
    }
}

impl DataRun {
    /// Creates the data of a task, in batches of `samples`, with the defaults of a run file for all else.
    pub fn new(task: impl Into<TaskConfig>, data: DataConfig, samples: usize) -> Self {
        Self {
            seed: default_seed(),
            task: task.into(),
            data,
            batch: BatchConfig {
                micro: Some(samples),
                micro_tokens: None,
                accumulate: None,
                accumulate_dtype: None,
            },
            strategies: Vec::new(),
            ranks: None,
            evaluate_samples: None,
            settled: Settled::default(),
        }
    }

    /// Reads and tokenizes the data, and reports progress through `say`.
    ///
    /// # Errors
    ///
    /// [`LoadError::Setting`] if a setting is invalid; the data cannot be read, or does not fit the task.
    pub fn load(&self, say: impl Fn(&str)) -> Result<Loaded, RunError> {
        self.load_until(&Interrupter::new(), say)
    }

    /// Like [`load`](Self::load), but stops immediately when `interrupter` receives a stop request.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load), and [`RunError::Interrupted`].
    pub fn load_until(&self, interrupter: &Interrupter, say: impl Fn(&str)) -> Result<Loaded, RunError> {
        if let Some(problem) = self.first_problem() {
            return Err(LoadError::from(problem).into());
        }
        let run = self.clone();
        let local = attended(interrupter, "preparing", &say, move |say| run.local(say))?;
        Ok(local.dataset().load_until(interrupter, say)?)
    }

    /// Tokenizes the text of `data.path` into a token file, as [`Dataset::tokenize`] does.
    ///
    /// # Errors
    ///
    /// A file of the Hub cannot be downloaded, and those of [`Dataset::tokenize`].
    pub fn tokenize(
        &self,
        output: &Path,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Tokenized, RunError> {
        // Before anything is downloaded.
        Staged::create(output).map_err(|error| TrainError::file(output, "making the file", error))?;
        let local = self.clone().local(&say)?;
        Ok(local.dataset().tokenize(output, interrupter, say)?)
    }

    /// Looks at the micro-batches of the first epoch, 5,000 at most, and keeps the first `batches` of them, `rows` rows of
    /// each, to be drawn.
    ///
    /// # Errors
    ///
    /// The first error of the data.
    pub fn preview(&self, loaded: &Loaded, batches: usize, rows: usize) -> Result<Preview, RunError> {
        Ok(loaded.preview(self.micro_batches(), batches, rows)?)
    }

    /// Returns the run with the paths of this machine in place of those on the Hub, whose files are downloaded.
    ///
    /// # Errors
    ///
    /// A file of the Hub cannot be downloaded.
    fn local(mut self, say: &dyn Fn(&str)) -> Result<Self, RunError> {
        let data = &mut self.data;
        for paths in data.path.iter_mut().chain(&mut data.valid) {
            *paths = local_data(paths, say)?;
        }
        for corpus in &mut data.mix {
            corpus.path = local_data(&corpus.path, say)?;
        }
        if let TokenizerConfig::File(path) = &mut data.tokenizer {
            *path = local_folder(path, FileSet::Tokenizer, say)?.into_owned();
        }
        Ok(self)
    }

    /// Returns the task on the data. Of the processes on a machine, one adds to the cache of tokens.
    fn dataset(self) -> Dataset {
        let first = Process::this().map_or(true, |process| process.on_machine == 0);
        Dataset {
            micro_batch: self.batch.amount(),
            global_batch: self.global_batch(),
            task: self.task,
            data: self.data,
            seed: self.seed,
            evaluate_samples: self.evaluate_samples,
            settled: self.settled,
            adds_to_cache: first,
        }
    }
}

/// Returns the paths on this machine: those on the Hub are downloaded.
///
/// # Errors
///
/// Those of [`local_paths`].
pub(crate) fn local_data(paths: &Paths, say: &dyn Fn(&str)) -> Result<Paths, HubError> {
    let mut local = local_paths(paths.as_slice(), say)?;
    Ok(match (paths, local.len()) {
        (Paths::One(_), 1) => Paths::One(local.remove(0)),
        _ => Paths::Several(local),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CausalLmTask, DpoTask, MaskedLmTask, Seq2SeqTask, SequenceClassificationTask, TokenClassificationTask,
    };

    fn data() -> DataConfig {
        DataConfig::new("data.jsonl", TokenizerConfig::Characters)
    }

    #[test]
    fn a_program_has_the_defaults_of_a_run_file() {
        let tasks: [(&str, TaskConfig); 6] = [
            ("CausalLm", CausalLmTask::default().into()),
            ("MaskedLm", MaskedLmTask::default().into()),
            ("TokenClassification", TokenClassificationTask::default().into()),
            ("SequenceClassification", SequenceClassificationTask::default().into()),
            ("Seq2Seq", Seq2SeqTask::default().into()),
            ("Dpo", DpoTask::default().into()),
        ];
        for (name, task) in tasks {
            let text = format!(
                "(task: {name}(), data: (path: \"data.jsonl\", tokenizer: Characters), batch: (micro: 4))"
            );
            // What has no default: the length of a window, and the most tokens of a prompt with its answer.
            let block = (name == "CausalLm").then_some(8);
            let max_length = (name == "Dpo").then_some(8);
            let set = [("block", block), ("max_length", max_length)];
            let set: Vec<_> =
                set.iter().filter_map(|(field, value)| Some(format!("data.{field}={}", (*value)?))).collect();
            let of_file = DataRun::parse("test", &text, &set).unwrap();
            let of_program = DataRun::new(task, DataConfig { block, max_length, ..data() }, 4);
            assert_eq!(of_program.task.name(), name);
            assert_eq!(format!("{of_program:?}"), format!("{of_file:?}"));
        }
    }

    #[test]
    fn a_program_is_told_of_a_setting_that_is_out_of_range() {
        let masked = |data, samples| {
            DataRun::new(MaskedLmTask::default(), data, samples).load(|_| ()).unwrap_err().to_string()
        };
        let error = masked(data(), 0);
        assert_eq!(error, "`batch.micro` must be at least 1 and at most a billion, found 0");
        let error = masked(DataConfig { valid_fraction: 2.0, ..data() }, 4);
        assert!(error.starts_with("`data.valid_fraction` must be "), "{error}");
        let format = Some(ron::from_str("Text()").unwrap());
        let error = masked(DataConfig { format, max_unpacked: Some(firebrick::ByteSize(1)), ..data() }, 4);
        assert!(error.starts_with("`data.max_unpacked` must be left out where `data.format` "), "{error}");
    }
}
