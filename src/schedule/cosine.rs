//! Half a cosine wave.

use serde::{Deserialize, Serialize};

use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, check, decay};

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

impl ScheduleRecipe for Cosine {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let Self { lr, warmup, from_zero, .. } = *self;
        warmup.then(lr, from_zero, update, total, |done, rest| {
            decay::between(self.min_lr, lr, decay::cosine(decay::progress(done, rest)))
        })
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        check::above_zero("lr", self.lr)?;
        check::at_most("min_lr", self.min_lr, "lr", self.lr)?;
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
