//! Half a cosine wave.

use serde::{Deserialize, Serialize};

use super::decay::{self, After, Decay};
use super::{SharedSettings, Warmup};

/// `min_lr + (lr - min_lr) · (1 + cos πp) / 2` (Loshchilov & Hutter, 2017, arXiv:1608.03983).
///
/// This is Transformers' cosine with its default `num_cycles` of 0.5. Past the end of the run the rate stays at `min_lr`,
/// while in Transformers it rises again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cosine {
    /// The highest rate.
    pub lr: f64,
    /// The rate at the end of the run. Default: 0.
    #[serde(default)]
    pub min_lr: f64,
    /// Length of the warmup. Default: no warmup.
    #[serde(default)]
    pub warmup: Warmup,
    /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

impl Decay for Cosine {
    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, min_lr, warmup, from_zero } = self;
        (*lr, SharedSettings { min_lr: Some(min_lr), warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        decay::cosine(after.progress())
    }
}
