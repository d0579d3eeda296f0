//! A power of a linear decay.

use serde::{Deserialize, Serialize};

use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, check, decay};

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

impl ScheduleRecipe for Polynomial {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let Self { lr, warmup, from_zero, .. } = *self;
        warmup.then(lr, from_zero, update, total, |done, rest| {
            decay::between(self.min_lr, lr, decay::linear(decay::progress(done, rest)).powf(self.power))
        })
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        check::above_zero("lr", self.lr)?;
        check::at_most("min_lr", self.min_lr, "lr", self.lr)?;
        check::above_zero("power", self.power)?;
        check::share(self.warmup)
    }

    fn warmup_updates(&self, total: u64) -> u64 {
        self.warmup.updates(total)
    }

    fn needs_length(&self) -> Option<&'static str> {
        Some(check::TAKE_ONE_WITHOUT_END)
    }

    fn shared(&mut self) -> SharedSettings<'_> {
        SharedSettings {
            min_lr: Some(&mut self.min_lr),
            warmup: Some(&mut self.warmup),
            from_zero: Some(&mut self.from_zero),
        }
    }
}
