//! Firebrick trains models written with [Burn](https://burn.dev).
#![doc = "stub"]

/// Readers, tokenizers, collators and sample streams.
pub use firebrick_datasets as datasets;
/// How a model is trained.
pub use firebrick_strategies as strategies;

mod accounting;
mod bench;
pub mod cli;
mod dashboard;
mod data;
pub mod device;
mod error;
mod feed;
mod gauges;
mod inside_burn_train;
mod lines;
mod log;
pub mod memory;
pub mod models;
mod objective;
mod report;
mod run;
mod saving;
mod schedule;
mod session;
mod step;
mod trainer;
mod training_loop;

pub use bench::{Bench, BenchReport, RawReport};
pub use burn::train::Interrupter;
pub use dashboard::Show;
pub use data::Data;
pub use error::TrainError;
pub use firebrick_strategies::{Accumulate, Amp, Clip, Pass, Strategy};
pub use objective::{Loss, Objective};
pub use report::{Report, process_start};
pub use run::*;
pub use schedule::Schedule;
pub use step::StepNumbers;
pub use trainer::{Trained, Trainer};
