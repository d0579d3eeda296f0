//! The program `firebrick`: trains language models from a run file.
//!
//! The [`guide`] explains the [run file](guide::run_file), the [commands](guide::commands), the tasks, ranks,
//! checkpoints, and how to migrate from other trainers. A Rust program can read and launch the same run files:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use firebrick::{Interrupter, Show};
//! use firebrick_cli::Run;
//!
//! let none: [&str; 0] = [];
//! let run = Run::read(Path::new("examples/causal_lm.ron"), &none)?;
//! let launched = run.launch(Show::Lines, Interrupter::new())?;
//! println!("train loss {:.4}", launched.report.train_loss);
//! # Ok::<(), firebrick_cli::RunError>(())
//! ```
//!
//! # The crate
//!
//! ```text
//! cli.rs         the command line
//! arguments.rs   the arguments of the process, read as a command
//! commands/      the commands, one per file, and the exit codes
//! error/         the errors of the commands
//! run/           a run as a RON file: parsing, checks, and launching it
//! plan/          estimates a run: bytes held and sent, operations, and what lets it fit
//! bench.rs       times steps, compared with a plain Burn loop or other settings
//! trained_run/   evaluates and measures a trained run, predicts and generates with it
//! hub/           models and data of the Hugging Face Hub
//! mlflow/        a run's numbers on an MLflow server
//! import/        converts a DeepSpeed configuration and Hugging Face's training arguments to a run file
//! init/          writes a run file for the data and the model that it is given
//! schema/        a JSON Schema of the run file
//! runs/          lists, compares and prunes runs
//! watch/         follows a run from another terminal
//! report_page/   one HTML page of a run, from the run's files alone
//! guide.rs       the pages of docs/
//! panics.rs      what the program prints of a panic
//! out_of_memory.rs   how it ends if there is no memory
//! threads.rs     the threads that compute, and those that the system does not start
//! signals.rs     Ctrl-C, SIGTERM and a closed terminal
//! console.rs     prints lines on standard error and the result on standard output
//! log_lines.rs   prints what the libraries report
//! ```

mod arguments;
mod bench;
mod burn_device;
pub mod cli;
mod commands;
mod console;
mod error;
pub mod guide;
mod hub;
pub mod import;
mod init;
mod log_lines;
mod mlflow;
mod out_of_memory;
mod panics;
mod plan;
mod program;
pub mod report_page;
mod run;
mod runs;
mod schema;
mod signals;
mod threads;
mod trained_run;
pub mod watch;

pub use bench::{Bench, BenchReport, BesideReport, RawReport};
pub use error::{Caret, ClusterError, InitError, MeasureError, PlanError, RunError};
pub use firebrick_tasks::{
    Asks, CausalLmTask, Cell, ChatConfig, Corpus, DataConfig, DpoTask, Examples, Grid, LabelSettings,
    Legible, LoadError, Loaded, Loading, Look, MaskedLmTask, Names, Numbers, Paths, PreferenceChat, Preview,
    Row, Rows, Seq2SeqTask, SequenceClassificationTask, Suggestion, Task, TaskConfig, TaskData, Tasks,
    TemplateConfig, TokenCacheError, TokenClassificationTask, TokenKind, Tokenized, TokenizerConfig, Writing,
    record_json,
};
pub use hub::HubError;
pub use mlflow::{MlflowConfig, MlflowError};
pub use plan::{
    Cluster, ClusterPlan, Collectives, FindBy, FoundBatch, Group, Peak, Plan, Planned, Sent, StepTime, Timed,
    Traffic,
};
pub use program::Program;
pub use run::{
    BatchConfig, CheckpointsConfig, DataRun, Families, Launched, LinkConfig, ModelConfig, Run, RunStrategy,
    SampleConfig,
};
pub use schema::schema;
pub use trained_run::{Evaluated, Measure, Measured, Predicted, TrainedRun};
