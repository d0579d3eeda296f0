//! A constant rate.

use serde::{Deserialize, Serialize};

use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, check};

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

impl ScheduleRecipe for Constant {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let Self { lr, warmup, from_zero, .. } = *self;
        warmup.then(lr, from_zero, update, total, |_, _| lr)
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        check::above_zero("lr", self.lr)?;
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
