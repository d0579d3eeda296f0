//! What exists for Burn, as it is: data sets and batchers, models with burn-train's steps, and metrics.
//!
//! ```text
//! dataset.rs  FromBurn: a data set with a batcher, as a stream of batches
//! steps.rs    Stepped: trains a model that implements burn-train's `TrainStep`
//! metric.rs   BurnMetric: a metric of burn-train as a score
//! ```
//!
//! Burn's optimizers train as they are, [`schedule::of_burn`](crate::schedule::of_burn) takes Burn's learning rate
//! schedulers, and a trained model is the Burn module that you passed to [`fit`](crate::Trainer::fit): `save_file`,
//! `into_record` and `burn::store` work on it.

mod dataset;
mod metric;
mod steps;

pub use dataset::{Collated, Counts, EachSample, FromBurn};
pub use metric::BurnMetric;
pub use steps::{StepOutput, Stepped};
