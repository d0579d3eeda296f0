//! Half cosine waves, one after another.

use serde::{Deserialize, Serialize};

use super::decay::{self, After, Decay};
use super::{ScheduleError, SharedSettings, Warmup, check};

/// `min_lr + (lr - min_lr) · (1 + cos π(cycles · p mod 1)) / 2`: each cycle starts at `lr` again, without its own warmup
/// (SGDR with equally spaced restarts, arXiv:1608.03983).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CosineRestarts {
    /// The highest rate.
    pub lr: f64,
    /// The rate at the end of each cycle. Default: 0.
    #[serde(default)]
    pub min_lr: f64,
    /// Number of half waves, `num_cycles` in Transformers. Default: 1, which is `Cosine`.
    #[serde(default = "one_cycle", alias = "num_cycles")]
    pub cycles: u64,
    /// Length of the warmup. Default: no warmup.
    #[serde(default)]
    pub warmup: Warmup,
    /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

fn one_cycle() -> u64 {
    1
}

impl Decay for CosineRestarts {
    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, min_lr, warmup, from_zero, .. } = self;
        (*lr, SharedSettings { min_lr: Some(min_lr), warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        decay::cosine(after.progress_in_cycle(self.cycles))
    }

    fn check_own(&self) -> Result<(), ScheduleError> {
        check::not_zero("cycles", self.cycles)
    }
}
