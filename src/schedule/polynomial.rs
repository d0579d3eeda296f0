//! A power of a linear decay.

use serde::{Deserialize, Serialize};

use super::decay::{self, After, Decay};
use super::{ScheduleError, SharedSettings, Warmup, check};

/// `min_lr + (lr - min_lr) · (1 - p)^power`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Polynomial {
    /// The highest rate.
    pub lr: f64,
    /// The rate at the end of the run, `lr_end` in Transformers. Default: 0; in Transformers, 1e-7.
    #[serde(default, alias = "lr_end")]
    pub min_lr: f64,
    /// The exponent. Default: 1, which is `Linear`.
    #[serde(default = "linear_power")]
    pub power: f64,
    /// Length of the warmup. Default: no warmup.
    #[serde(default)]
    pub warmup: Warmup,
    /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

fn linear_power() -> f64 {
    1.0
}

impl Decay for Polynomial {
    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, min_lr, warmup, from_zero, .. } = self;
        (*lr, SharedSettings { min_lr: Some(min_lr), warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        decay::linear(after.progress()).powf(self.power)
    }

    fn check_own(&self) -> Result<(), ScheduleError> {
        check::above_zero("power", self.power)
    }
}
