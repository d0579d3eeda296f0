//! A decay with the inverse square root of the update.

use serde::{Deserialize, Serialize};

use super::decay::{After, Decay};
use super::{ScheduleError, SharedSettings, Warmup, check};

/// `lr · √(timescale / (t - w + timescale))`: the rate falls for as long as the run continues, which needs no end
/// (Zhai et al., 2022, arXiv:2106.04560).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InverseSqrt {
    /// The highest rate.
    pub lr: f64,
    /// Number of updates after the warmup at which the rate is `lr / √2`. Default: the length of the warmup, or 10000
    /// without one.
    pub timescale: Option<u64>,
    /// Length of the warmup. Default: no warmup.
    #[serde(default)]
    pub warmup: Warmup,
    /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

impl Decay for InverseSqrt {
    const ENDS: bool = false;

    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, warmup, from_zero, .. } = self;
        (*lr, SharedSettings { min_lr: None, warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        after.inverse_sqrt(self.timescale)
    }

    fn check_own(&self) -> Result<(), ScheduleError> {
        check::not_zero("timescale", self.timescale.unwrap_or(1))
    }
}
