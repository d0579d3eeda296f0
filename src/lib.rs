//! Firebrick trains models written with [Burn](https://burn.dev).
//!
//! An [`Objective`] computes the loss of one batch, [`datasets::Batches`] returns the samples at given positions, and a
//! [`Trainer`] composes the training recipe, one line per technique. Strategies such as [`Amp`], [`Accumulate`], [`Zero`],
//! [`Offload`] and [`Recompute`] say how a step is executed: they change memory, speed and the number of machines, and the
//! result only within a stated tolerance. Others, such as [`Clip`], [`Freeze`], [`Lora`] and [`Ema`], say what is learned.
//!
//! ```
//! use burn::tensor::Device;
//! use firebrick::datasets::{Tokenizer, Windows};
//! use firebrick::optim::AdamW;
//! use firebrick::{Accumulate, Amp, Clip, Data, Schedule, Trainer};
//! use firebrick_models::GptConfig;
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
//! let optimizer = AdamW::new().init()?;
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
//! [`Trainer`] explains how gradients pass through the strategies, and [`strategies`] how to write your own. The crate
//! `firebrick-models` has language models, and `firebrick-cli` the program that trains them from a run file, with a
//! guide to tasks, ranks, checkpoints, and how to migrate from other trainers.
//!
//! # The crate
//!
//! ```text
//! trainer/       Trainer: settings and strategies composed, and the start of a run
//! engine/        the session that makes updates, the loop, and what ranks agree upon
//! checkpoint/    what a checkpoint contains, when it is saved, and how a run continues from it
//! observe/       what a run shows and records: lines, the dashboard, logs, the report
//! accounting/    bytes of parameters, gradients and optimizer state, and the budget of a device
//! schedule/      learning rates
//! device/        devices by name, what they support, and the kernels that are kept for them
//! of_burn/       Burn's data sets, burn-train's steps and metrics, as they are
//! files/         files that a reader finds whole: staged and renamed, appended, retried
//! scratch/       tensors that wait on a disk instead of in memory
//! output/        the output folder of a run, and files that are written into it step by step
//! beside.rs      background work on a thread
//! saving.rs      a model or a text, written so that a reader finds it whole
//! in_ron.rs      values that are read from their RON text
//! objective.rs, any_batch.rs, any_model.rs, score.rs, data.rs, adapters/, error.rs
//! ```
//!
//! [`engine`], [`observe`], [`checkpoint`], [`accounting`], [`saving`], [`files`] and [`output`] are public for programs around
//! the trainer, such as `firebrick-cli`. A program that trains needs the names of this page only.

/// Writes, checks and reads the files of a checkpoint.
pub use firebrick_checkpoints as checkpoints;
/// Readers, tokenizers, collators and sample streams.
pub use firebrick_datasets as datasets;
/// Tensor operations with gradients of their own, and what measures memory.
pub use firebrick_kernels as kernels;
/// Strategies: the techniques that a training recipe is composed of.
pub use firebrick_strategies as strategies;
/// The ranks of a run, and the collectives between them.
pub use firebrick_world as world;

pub mod accounting;
mod adapters;
mod any_batch;
mod any_model;
mod beside;
pub mod checkpoint;
pub mod data;
pub mod device;
pub mod engine;
mod error;
pub mod files;
pub mod gather;
#[cfg(feature = "ron")]
mod in_ron;
mod objective;
pub mod observe;
pub mod of_burn;
pub mod output;
pub mod saving;
pub mod schedule;
mod score;
mod scratch;
#[cfg(test)]
mod testing;
mod trainer;

pub use accounting::DiskBytes;
pub use accounting::budget::{Moment, OnDevice, OverBudget};
pub use accounting::byte_size::ByteSize;
pub use adapters::{AdaptedModel, Adapters, Factors, NamedParameter, SavedParameter};
pub use any_batch::AnyBatch;
pub use any_model::AnyModel;
pub use burn::train::Interrupter;
pub use checkpoint::{Checkpoints, Resume, TrainerState};
pub use data::Data;
pub use error::{AdapterError, Change, ResumeError, TrainError};
pub use files::writes::FailedWrites;
pub use firebrick_kernels::memory;
pub use firebrick_strategies::{
    Accumulate, Amp, Clip, Composed, Composition, Dropout, Ema, Freeze, Keep, KeepPadding, Lora, LossScale,
    Mesh, Offload, Pass, Quantize, Recompute, SkipOutliers, Strategy, TensorPlan, Zero, optim,
};
pub use firebrick_world::World;
pub use objective::{Evaluation, Loss, Objective};
pub use observe::numbers::{EvaluationNumbers, EvaluationProgress, Round, SaveNumbers, StepNumbers};
pub use observe::observer::Observer;
pub use observe::rank_report::{PerStep, RankReport};
pub use observe::report::{Report, process_start};
pub use observe::terminal::Show;
pub use observe::utilization::Utilization;
pub use schedule::{LrSchedule, Schedule, ScheduleError, Warmup};
pub use score::{BestBy, EvaluationSums, Score, ScoreFn, Scores};
pub use scratch::{ScratchError, require_scratch};
pub use trainer::{Trained, Trainer, TrainingSettings};
