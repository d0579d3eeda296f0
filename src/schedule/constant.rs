//! A constant rate.

use serde::{Deserialize, Serialize};

use super::decay::{After, Decay};
use super::{SharedSettings, Warmup};

/// A constant rate of `lr` after the warmup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// The rate.
    pub lr: f64,
    /// Length of the warmup. Default: no warmup.
    #[serde(default)]
    pub warmup: Warmup,
    /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

impl Decay for Constant {
    const ENDS: bool = false;

    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, warmup, from_zero } = self;
        (*lr, SharedSettings { min_lr: None, warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, _: After) -> f64 {
        1.0
    }
}
