//! The errors of a run file and of a run.
//!
//! ```text
//! mod.rs      RunError: what a command ends with
//! caret.rs    the line of a file or an option that is wrong, and where
//! import.rs   a configuration of another trainer cannot be read
//! init.rs     no run file can be written for some data
//! measure.rs  a model cannot be measured
//! plan.rs     a run cannot be planned
//! cluster.rs  the description of a cluster cannot be read
//! ```

mod caret;
mod cluster;
mod import;
mod init;
mod measure;
mod plan;

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use firebrick_datasets::{DataError, ReadError, TokenizerError, counted};
use firebrick_strategies::StrategyError;
use firebrick_strategies::optim::GroupsError;
use firebrick_tasks::{LoadError, TokenCacheError};
use thiserror::Error;

use crate::hub::HubError;
use crate::mlflow::MlflowError;
use crate::report_page::ReportPageError;
use crate::watch::WatchError;
use firebrick::device::DeviceError;
use firebrick::device::kernel_cache::KernelCacheError;
use firebrick::{FailedWrites, TrainError};
use firebrick_models::pretrained::PretrainedError;

pub use caret::Caret;
pub use cluster::ClusterError;
pub use import::ImportError;
pub(crate) use import::MOST_BYTES;
pub use init::InitError;
pub use measure::MeasureError;
pub use plan::PlanError;

/// An error in a run file, or in the run that it describes.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The file cannot be read.
    #[error("{path}: cannot read the run file: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        reason: String,
    },
    /// The file is not RON, or does not describe a run: it has an unknown field or a value of the wrong type.
    #[error("{file}:{line}: {reason}{caret}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What was expected and what was found, with the nearest known name.
        reason: String,
        /// The place in the file.
        caret: Box<Caret>,
    },
    /// A crate cannot be written.
    #[error("{}: {reason}", folder.display())]
    New {
        /// Its folder.
        folder: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// A run file cannot be drafted.
    #[error(transparent)]
    Init(#[from] InitError),
    /// An override cannot be applied.
    #[error("{set}: {reason}{caret}")]
    Set {
        /// The override as given, with its option.
        set: String,
        /// What is wrong with it.
        reason: String,
        /// The place in the override.
        caret: Box<Caret>,
    },
    /// A value is invalid, or contradicts another one.
    #[error("{file}:{line}: `{field}` must be {expected}, found {found}{caret}")]
    Value {
        /// The file.
        file: String,
        /// The line of the field, or of the struct that lacks it.
        line: usize,
        /// The path of the field.
        field: String,
        /// What the field may be.
        expected: String,
        /// What the field is.
        found: String,
        /// The place in the file.
        caret: Box<Caret>,
    },
    /// The prompt cannot be encoded.
    #[error("`sample.prompt`: {reason}")]
    Prompt {
        /// The tokenizer's reason.
        reason: String,
    },
    /// The sample does not fit into this machine's memory.
    #[error(
        "`sample.tokens` is {tokens}: a text of this length needs at least {:.1} GB, but this machine has {:.1} GB: lower it",
        needed / 1e9, *available as f64 / 1e9
    )]
    Sample {
        /// Number of tokens to generate.
        tokens: usize,
        /// Bytes of the tokens, their keys and values.
        needed: f64,
        /// Bytes that the machine has.
        available: u64,
    },
    /// The model cannot learn the task.
    #[error("`model`: expected one that learns `{task}`: {models}; found `{found}`")]
    Task {
        /// The task.
        task: &'static str,
        /// The models that can learn the task.
        models: String,
        /// The model that the run names.
        found: String,
    },
    /// The folder's model belongs to an unknown family.
    #[error("{folder}: expected a `model_type` of {}; found {found}", known.join(", "))]
    Family {
        /// The folder.
        folder: PathBuf,
        /// The known families.
        known: Vec<&'static str>,
        /// The `model_type` in `config.json`.
        found: String,
    },
    /// The folder holds no weights of a trained run.
    #[error(
        "{0}: expected the weights of a trained run: train the run to its end, export what it has saved \
         with `firebrick export RUN`, or name a Hugging Face folder with --weights"
    )]
    NotTrained(PathBuf),
    /// A folder is not that of a run.
    #[error(
        "{0}: expected the output folder of a run; `firebrick runs FOLDER` lists those in a folder, and `firebrick train RUN.ron` trains one"
    )]
    NoRun(PathBuf),
    /// The reference model was not asked about the data that a run is evaluated on.
    #[error(
        "sample {0} of the data: the reference model was asked about the run's own data before it was trained, and about no other, so the loss and the rewards of this data are unknown: leave out --data to evaluate the run on its validation data, or measure it with --perplexity, --choices or --texts"
    )]
    NotAsked(usize),
    /// A run has saved no weights yet.
    #[error(
        "{0}: this run has saved no weights yet: neither `best.safetensors` of an evaluation nor a checkpoint; continue it with `firebrick train RUN.ron --resume auto`"
    )]
    NothingSaved(PathBuf),
    /// A run has saved no checkpoint.
    #[error(
        "{0}: this run has saved no checkpoint: set `checkpoints: (every: 100)` in its run file to save one every 100 updates; `firebrick export` writes the best weights of a run without checkpoints"
    )]
    NoCheckpoint(PathBuf),
    /// A resumed run keeps its own tokenizer, which cannot encode the data.
    #[error(
        "{error}; a resumed run keeps its own tokenizer, {tokenizer}, so this is not the data that it was saved with: resume with that data, or start a new run, in another output folder"
    )]
    OwnTokenizer {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// What the tokenizer cannot encode.
        error: Box<RunError>,
    },
    /// A trained run was asked to read data with another tokenizer than its own.
    #[error("`data.tokenizer` cannot be set here: the model reads the tokens of {0}; leave it out")]
    TrainedTokenizer(PathBuf),
    /// The model of the task does not generate text.
    #[error(
        "a model of `{0}` generates no text, as those of `CausalLm` and `Seq2Seq` do: use `firebrick predict`"
    )]
    WritesNothing(&'static str),
    /// The run cannot log to its MLflow server.
    #[error(transparent)]
    Mlflow(#[from] MlflowError),
    /// A file of the Hugging Face Hub cannot be downloaded, or a folder cannot be pushed.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model cannot be measured as asked.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The reader of the output has closed it, as `head` does: there is nothing more to do.
    #[error("nothing reads the output any more")]
    Unread,
    /// There are no records to answer.
    #[error("the run has no validation files: name the records to answer with --data")]
    NothingAsked,
    /// The run does not fit into this machine's memory.
    #[error(
        "a model of {parameters:.3e} parameters with micro-batches of {rows} rows and {tokens} tokens needs at least {:.1} GB for its {} in this process, but this machine has {:.1} GB: lower `batch`, `data.block`, `data.max_length`, `data.padding`, `model.width`, `model.layers`, the vocabulary or `ranks`{}",
        needed / 1e9, counted(*ranks, "rank"), *available as f64 / 1e9, or_a_disk(*a_disk_helps)
    )]
    TooLarge {
        /// Number of parameters.
        parameters: f64,
        /// Rows of the first micro-batch.
        rows: usize,
        /// Tokens of those rows, padding included.
        tokens: usize,
        /// Ranks of this process.
        ranks: usize,
        /// Bytes that the run needs.
        needed: f64,
        /// Bytes that the machine has.
        available: u64,
        /// Whether it would be enough if a disk kept the parameters of blocks and the optimizer's state.
        a_disk_helps: bool,
    },
    /// The system does not start the threads that compute.
    #[error(
        "the system cannot start {}: {reason}; raise the limits of this process (`ulimit -u`, `ulimit -v`), or set `RAYON_NUM_THREADS` to a smaller number",
        counted(*threads, "thread")
    )]
    NoThreads {
        /// The number of threads.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
    /// The process cannot run this many ranks.
    #[error(
        "`ranks` must be at most {most} in a process, where each is a thread, found {ranks}, whose stacks and model take at least {:.1} GB: lower it, or start several processes with `mpirun`",
        needed / 1e9
    )]
    TooManyRanks {
        /// Ranks of this process.
        ranks: usize,
        /// The most ranks that a process may have.
        most: usize,
        /// Bytes of their stacks, weights, gradients and optimizer state. The vocabulary is not known yet, so it counts
        /// as one token.
        needed: f64,
    },
    /// A launcher started several processes of a program that was built without MPI.
    #[error(
        "a launcher started {0} processes, but this program was built without MPI: build it with `cargo build --release --features mpi`, or train with `--ranks {0}` in one process"
    )]
    NoMpi(usize),
    /// The ranks cannot be divided evenly among the processes.
    #[error(
        "{ranks} ranks cannot be divided evenly among {processes} processes: set `ranks` to a multiple of {processes}"
    )]
    Ranks {
        /// Ranks of the run.
        ranks: usize,
        /// Processes that the launcher started.
        processes: usize,
    },
    /// A checkpoint differs from what was saved.
    #[error(
        "{path}: {}, listed above: resume from another checkpoint, or restore the files",
        counted(*problems, "problem")
    )]
    Damaged {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Number of problems.
        problems: usize,
    },
    /// An imported configuration asks for something that is not supported.
    #[error(
        "{}, listed above, not supported or not known: the result may change; correct the configuration, or continue \
         without them with --allow-unsupported",
        counted(*.0, "field")
    )]
    NotImported(usize),
    /// A run file cannot be written.
    #[error("{path}: cannot write the run file: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The run is over, but its last state could not be saved.
    #[error(
        "the last checkpoint could not be saved: {0}; the weights are in the output folder, and `--resume` continues from the previous checkpoint"
    )]
    NotSaved(String),
    /// A file of the run could not be written completely.
    #[error(
        "the run is trained, but {file} is not complete: {failures} attempts to write it failed, the last one with: \
         {reason}; free some space, or give this user the right to write there"
    )]
    Unwritten {
        /// The name of the file in the output folder.
        file: String,
        /// Attempts that failed.
        failures: u64,
        /// The reason of the last failed attempt.
        reason: String,
    },
    /// The run is trained and saved, but its description could not be written.
    #[error("the run is trained and saved, but {0}")]
    Undescribed(String),
    /// The run was interrupted while the trained model wrote its sample.
    #[error(
        "interrupted; the run is complete in {0}, except for its sample: `firebrick generate` writes one"
    )]
    NoSample(PathBuf),
    /// The run was interrupted before there was anything to save.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// A configuration cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The run cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The report page of a run cannot be made.
    #[error(transparent)]
    Page(#[from] ReportPageError),
    /// A run cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// A Hugging Face folder cannot be read or written.
    #[error(transparent)]
    Pretrained(#[from] PretrainedError),
    /// A group of `param_groups`, or `layer_decay`, does not fit the model.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// The device is not available.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The folder with compiled kernels cannot be read or cleared.
    #[error(transparent)]
    KernelCache(#[from] KernelCacheError),
    /// The token cache cannot be used.
    #[error(transparent)]
    TokenCache(#[from] TokenCacheError),
    /// The data cannot be loaded, or does not fit the task or the model.
    #[error(transparent)]
    Load(LoadError),
    /// The data, the strategies or the training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
}

fn or_a_disk(helps: bool) -> &'static str {
    match helps {
        true => {
            ", or keep parameters and the optimizer's state on a disk with `Offload(keep: parameters, on: \"FOLDER\")`"
        }
        false => "",
    }
}

impl RunError {
    /// Whether the data has a character that the tokenizer's vocabulary lacks.
    pub(crate) fn is_of_vocabulary(&self) -> bool {
        match self {
            Self::Train(TrainError::Data(DataError::Tokenizer(TokenizerError::UnknownCharacter {
                ..
            }))) => true,
            Self::Train(TrainError::Data(DataError::Read(ReadError::Record { found, .. }))) => {
                found.contains("is not in the vocabulary")
            }
            _ => false,
        }
    }
}

impl From<DataError> for RunError {
    fn from(error: DataError) -> Self {
        Self::Train(error.into())
    }
}

/// What a run has an error of its own for is that one, wherever it comes from.
impl From<LoadError> for RunError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Data(error) => error.into(),
            LoadError::Interrupted => Self::Interrupted,
            error => Self::Load(error),
        }
    }
}

impl From<StrategyError> for RunError {
    fn from(error: StrategyError) -> Self {
        Self::Train(error.into())
    }
}

impl RunError {
    /// Returns the error for output that cannot be written.
    pub(crate) fn output(what: &'static str, error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::Unread,
            _ => TrainError::file(what, "writing", error).into(),
        }
    }

    /// Returns the error for a file that is incomplete at the end of a run.
    pub(crate) fn unwritten(file: &FailedWrites) -> Option<Self> {
        let FailedWrites { file, failures, error } = file.clone();
        error.map(|reason| Self::Unwritten { file, failures, reason })
    }
}
