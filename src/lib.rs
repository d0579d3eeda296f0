//! Firebrick trains models written with [Burn](https://burn.dev).
//!
//! An [`Objective`] computes the loss of one batch, [`datasets::Batches`] returns the samples at given positions, and a
//! [`Trainer`] composes the training recipe, one line per technique. A strategy changes memory, speed and the number of
//! machines, but never the result beyond a stated tolerance.
//!
//! ```
//! use burn::tensor::Device;
//! use firebrick::datasets::{Tokenizer, Windows};
//! use firebrick::optim::AdamW;
//! use firebrick::{Accumulate, Amp, Clip, Data, Schedule, Trainer, models::GptConfig};
//!
//! // Text to windows of 8 characters, each of which predicts the next.
//! let text = "to be or not to be, that is the question; ".repeat(20);
//! let tokenizer = Tokenizer::characters(&text)?;
//! let data = Data::new(Windows::new(tokenizer.encode(&text)?, 8)?.shuffled(42)).micro_batch(4);
//!
//! // An ordinary Burn model, optimizer (any of Burn's, or one that is faster on the CPU) and device.
//! let device = Device::flex().autodiff();
//! let config = GptConfig { layers: 1, heads: 2, width: 16, dropout: 0.0, bias: true, tied: true };
//! let model = config.init(tokenizer.vocab_size(), 8, &device);
//! let optimizer = AdamW::new().init();
//!
//! let trained = Trainer::new()
//!     .with(Amp::bf16())
//!     .with(Accumulate(2))
//!     .with(Clip::norm(1.0))
//!     .steps(30)
//!     .fit(model, optimizer, Schedule::cosine(1e-2).warmup(3), data)?;
//! assert!(trained.report.train_loss < 3.0);
//! # Ok::<(), firebrick::TrainError>(())
//! ```
//!
//! [`Trainer`] explains how gradients pass through the strategies, and [`strategies`] how to write your own. The
//! [`guide`] covers the rest: the [run file](guide::run_file) with which the program `firebrick` trains the same model,
//! the tasks, ranks, checkpoints, and how to migrate from other trainers.

/// Writes, checks and reads the files of a checkpoint.
pub use firebrick_checkpoints as checkpoints;
/// Readers, tokenizers, collators and sample streams.
pub use firebrick_datasets as datasets;
/// Tensor operations with gradients of their own, and what measures memory.
pub use firebrick_kernels as kernels;
/// Scores of language tasks that agree with the field's implementations.
pub use firebrick_metrics as metrics;
/// Strategies: the techniques that a training recipe is composed of.
pub use firebrick_strategies as strategies;
/// The ranks of a run, and the collectives between them.
pub use firebrick_world as world;

mod accounting;
mod adapters;
mod agreement;
mod answers;
mod appended;
mod bench;
mod beside;
mod best;
mod best_file;
mod budget;
mod byte_size;
mod checkpoint;
mod checkpoint_command;
pub mod cli;
mod console;
mod dashboard;
mod data;
pub mod decoding;
mod decoding_args;
pub mod device;
mod dry_run;
mod elementwise;
mod error;
mod events;
mod exit;
mod export_command;
mod feed;
mod gauges;
pub mod guide;
mod history;
pub mod import;
mod import_command;
mod inside_burn_train;
mod lines;
mod log;
mod metric_files;
pub mod models;
mod objective;
mod optional_batch;
mod output;
mod page_command;
mod plan;
mod plan_command;
mod preview;
mod progress;
mod rank_report;
mod ranks;
mod report;
pub mod report_page;
mod run;
mod saving;
pub mod schedule;
mod score;
mod session;
mod signals;
mod step;
mod summary;
pub mod tensorboard;
#[cfg(test)]
mod testing;
mod trained_command;
mod trained_run;
mod trainer;
mod training_loop;
pub mod watch;
mod writes;

pub use adapters::{Adapters, Factors};
pub use bench::{Bench, BenchReport, BesideReport, RawReport};
pub use budget::{Moment, OnDevice, OverBudget};
pub use burn::train::Interrupter;
pub use byte_size::ByteSize;
pub use checkpoint::{Change, Checkpoints, Resume, ResumeError, TrainerState};
pub use dashboard::Show;
pub use data::Data;
pub use error::TrainError;
pub use firebrick_kernels::memory;
pub use firebrick_strategies::{
    Accumulate, Amp, Clip, Dropout, Ema, Freeze, Keep, Lora, LossScale, Offload, Pass, Recompute, Strategy,
    Zero, optim,
};
pub use firebrick_world::World;
pub use objective::{Loss, Objective};
pub use plan::{FoundBatch, Plan, PlanError, Planned, Sent};
pub use preview::{Cell, Kind, Legible, Look, Names, Numbers, Preview, Row};
pub use rank_report::{PerStep, RankReport};
pub use report::{Report, process_start};
pub use run::*;
pub use schedule::{Schedule, ScheduleError, Warmup};
pub use score::{Evaluation, Score, Scores};
pub use step::StepNumbers;
pub use trained_run::{Evaluated, Predicted, TrainedRun};
pub use trainer::{Trained, Trainer};
pub use writes::FailedWrites;
