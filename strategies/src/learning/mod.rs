//! Strategies that change what is learned: the gradient of an update, the parameters that are trained, and their average.
//!
//! ```text
//! clip.rs           Clip: bounds the gradient's norm or its elements
//! skip_outliers.rs  SkipOutliers: skips an update whose gradient norm is an outlier
//! freeze.rs         Freeze: excludes parameters from training
//! lora/             Lora: low-rank factors beside frozen matrices
//! quantize/         Quantize: keeps frozen matrices in 4 or 8 bits
//! ema.rs            Ema: an average of the weights over the updates
//! ```

mod clip;
mod ema;
mod freeze;
mod lora;
mod quantize;
mod skip_outliers;

pub use clip::Clip;
pub use ema::Ema;
pub use freeze::Freeze;
pub use lora::{Lora, LoraFactors, Targets, adapted_linear, undropped_linear};
pub use quantize::Quantize;
pub use skip_outliers::SkipOutliers;
