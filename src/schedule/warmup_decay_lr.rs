//! DeepSpeed's warmup with a linear decay.

use serde::{Deserialize, Serialize};

use super::check::{above_zero, at_most, own_total, share};
use super::warmup_lr::{thousand, updates};
use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, WarmupType};

/// DeepSpeed's `WarmupDecayLR`: rises from `min_lr` to `lr` as [`WarmupType`] defines, then falls linearly as
/// `min_lr + (lr - min_lr) · (total - t + 1) / (total - w)`. Because the scheduler is one behind, it would reach
/// `min_lr` one update after the last.
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::WarmupDecayLr;
///
/// let schedule = Schedule::new("WarmupDecayLr", WarmupDecayLr::new(1.0)).warmup(2);
/// assert_eq!([2, 3, 6, 10, 11].map(|update| schedule.rate(update, 10)), [1.0, 1.0, 0.625, 0.125, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmupDecayLr {
    /// The highest rate.
    #[serde(alias = "warmup_max_lr")]
    pub lr: f64,
    /// The first and the last rate. Default: 0.
    #[serde(default, alias = "warmup_min_lr")]
    pub min_lr: f64,
    /// Length of the warmup. Default: 1000 updates.
    #[serde(default = "thousand", alias = "warmup_num_steps")]
    pub warmup: Warmup,
    /// Shape of the warmup. Default: `Log`.
    #[serde(default)]
    pub warmup_type: WarmupType,
    /// The update at which the decay ends. Default: the length of the run.
    #[serde(alias = "total_num_steps")]
    pub total: Option<u64>,
}

impl WarmupDecayLr {
    /// Creates a schedule with DeepSpeed's defaults: up from 0 over 1000 updates, and down to 0 at the end of the run.
    pub fn new(lr: f64) -> Self {
        Self { lr, min_lr: 0.0, warmup: thousand(), warmup_type: WarmupType::Log, total: None }
    }
}

impl ScheduleRecipe for WarmupDecayLr {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let (warmup, total) = (updates(self.warmup, total), self.total.unwrap_or(total));
        let share = self.warmup_type.risen(update, warmup).unwrap_or_else(|| {
            let left = total.saturating_sub(update.saturating_sub(1));
            left as f64 / total.saturating_sub(warmup).max(1) as f64
        });
        self.min_lr + (self.lr - self.min_lr) * share
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        above_zero("lr", self.lr)?;
        at_most("min_lr", self.min_lr, "lr", self.lr)?;
        share(self.warmup)
    }

    fn warmup_updates(&self, total: u64) -> u64 {
        updates(self.warmup, total)
    }

    fn needs_length(&self) -> Option<&'static str> {
        let end = self.total.is_none().then_some("give its `total`");
        end.or(self.warmup.needs_length())
    }

    fn check_length(&self, total: Option<u64>) -> Result<(), ScheduleError> {
        own_total(self.total, self.warmup_updates(total.unwrap_or(0)))
    }

    fn rate_settings(&self) -> &'static [&'static str] {
        &["lr", "warmup_max_lr"]
    }

    fn shared(&mut self) -> SharedSettings<'_> {
        SharedSettings {
            min_lr: Some(&mut self.min_lr),
            warmup: Some(&mut self.warmup),
            ..SharedSettings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decay_without_a_warmup_starts_at_the_highest_rate_and_never_above() {
        let schedule = WarmupDecayLr { warmup: 0.into(), ..WarmupDecayLr::new(1.0) };
        assert_eq!([0, 1, 2].map(|update| schedule.rate(update, 10)), [1.0, 1.0, 0.9]);
    }

    #[test]
    fn its_own_length_goes_before_that_of_the_run() {
        let schedule = WarmupDecayLr { warmup: 2.into(), total: Some(6), ..WarmupDecayLr::new(1.0) };
        assert_eq!([5, 6, 7, 99].map(|update| schedule.rate(update, 100)), [0.5, 0.25, 0.0, 0.0]);
    }
}
