//! A decay with the inverse square root of the update.

use serde::{Deserialize, Serialize};

use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, check, decay};

/// `lr · √(timescale / (t - w + timescale))`: the rate falls for as long as the run continues, which needs no end
/// (Zhai et al., 2022, arXiv:2106.04560).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InverseSqrt {
    /// The highest rate.
    pub lr: f64,
    /// Number of updates after the warmup at which the rate is `lr / √2`. Default: the length of the warmup, or 10000
    /// without one.
    #[serde(default)]
    pub timescale: Option<u64>,
    /// Length of the warmup. Default: no warmup.
    #[serde(default)]
    pub warmup: Warmup,
    /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

impl ScheduleRecipe for InverseSqrt {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let Self { lr, warmup, from_zero, .. } = *self;
        warmup.then(lr, from_zero, update, total, |done, _| {
            lr * decay::inverse_sqrt(done, self.timescale, warmup.updates(total))
        })
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        check::above_zero("lr", self.lr)?;
        check::not_zero("timescale", self.timescale.unwrap_or(1))?;
        check::share(self.warmup)
    }

    fn warmup_updates(&self, total: u64) -> u64 {
        self.warmup.updates(total)
    }

    fn needs_length(&self) -> Option<&'static str> {
        self.warmup.needs_length()
    }

    fn shared(&mut self) -> SharedSettings<'_> {
        SharedSettings {
            warmup: Some(&mut self.warmup),
            from_zero: Some(&mut self.from_zero),
            ..SharedSettings::default()
        }
    }
}
