//! DeepSpeed's warmup, and its schedules that begin with one.

use serde::{Deserialize, Serialize};

use super::check::{above_zero, at_most, own_total, ratio, share};
use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, decay};

/// The shape of the warmup of DeepSpeed's schedules over `w` updates.
///
/// DeepSpeed steps its scheduler after the optimizer, and the scheduler counts from 0. Therefore the first two updates
/// run at the lowest rate `m`, and the rate reaches `lr` one update later than in other schedules (with `Log`, already
/// at update `w`). This is kept so that a run has the same rates as in DeepSpeed. `w` is at least 2, except that 0
/// means no warmup. With `lr: 1.0, warmup: 4`, the first six rates are:
///
/// | | 0 | 1 | 2 | 3 | 4 | 5 |
/// |---|---|---|---|---|---|---|
/// | `Log` | 0.0 | 0.0 | 0.5 | 0.7925 | 1.0 | 1.0 |
/// | `Linear` | 0.0 | 0.0 | 0.25 | 0.5 | 0.75 | 1.0 |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WarmupType {
    /// `m + (lr - m) · ln t / ln w`.
    #[default]
    #[serde(alias = "log")]
    Log,
    /// `m + (lr - m) · (t - 1) / w`.
    #[serde(alias = "linear")]
    Linear,
}

impl WarmupType {
    /// Returns the progress at update `update`, or `None` after a warmup of `warmup` updates.
    pub(super) fn risen(self, update: u64, warmup: u64) -> Option<f64> {
        // The scheduler's count is one behind; at update 0 the scheduler has not started.
        let count = update.saturating_sub(1);
        (count < warmup).then(|| match self {
            Self::Log => ((count + 1) as f64).ln() / (warmup as f64).ln(),
            Self::Linear => count as f64 / warmup as f64,
        })
    }
}

/// Returns the number of updates that DeepSpeed warms up for.
pub(super) fn updates(warmup: Warmup, total: u64) -> u64 {
    match warmup.updates(total) {
        0 => 0,
        updates => updates.max(2),
    }
}

/// DeepSpeed's default of `warmup_num_steps`.
pub(super) fn thousand() -> Warmup {
    Warmup::Updates(1000)
}

/// DeepSpeed's `WarmupLR`: rises from `min_lr` to `lr` as [`WarmupType`] defines, and stays there.
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::{WarmupLr, WarmupType};
///
/// let schedule = WarmupLr { warmup_type: WarmupType::Linear, ..WarmupLr::new(1.0) };
/// let schedule = Schedule::new("WarmupLr", schedule).warmup(4);
/// assert_eq!([0, 1, 2, 4, 5].map(|update| schedule.rate(update, 10)), [0.0, 0.0, 0.25, 0.75, 1.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmupLr {
    /// The highest rate.
    #[serde(alias = "warmup_max_lr")]
    pub lr: f64,
    /// The first rate. Default: 0.
    #[serde(default, alias = "warmup_min_lr")]
    pub min_lr: f64,
    /// Length of the warmup. Default: 1000 updates.
    #[serde(default = "thousand", alias = "warmup_num_steps")]
    pub warmup: Warmup,
    /// Shape of the warmup. Default: `Log`.
    #[serde(default)]
    pub warmup_type: WarmupType,
}

impl WarmupLr {
    /// Creates a schedule with DeepSpeed's defaults: up from 0 over 1000 updates.
    pub fn new(lr: f64) -> Self {
        Self { lr, min_lr: 0.0, warmup: thousand(), warmup_type: WarmupType::Log }
    }
}

impl ScheduleRecipe for WarmupLr {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let risen = self.warmup_type.risen(update, updates(self.warmup, total)).unwrap_or(1.0);
        self.min_lr + (self.lr - self.min_lr) * risen
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
        self.warmup.needs_length()
    }

    fn rate_settings(&self) -> &'static [&'static str] {
        &["lr", "warmup_max_lr"]
    }

    fn shared(&mut self) -> SharedSettings<'_> {
        SharedSettings { warmup: Some(&mut self.warmup), ..SharedSettings::default() }
    }
}

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

/// DeepSpeed's `WarmupCosineLR`: rises from `lr · warmup_min_ratio` to `lr` as [`WarmupType`] defines, then follows
/// `lr · (r + (1 - r) · (1 + cos πp) / 2)` with `r = cos_min_ratio` and `p = (t - w) / (total - w)`.
///
/// As in DeepSpeed, the first update runs at 0 whatever `warmup_min_ratio` is, because the scheduler has not started.
/// `lr` is the rate that DeepSpeed takes from the optimizer.
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::WarmupCosineLr;
///
/// let schedule = WarmupCosineLr { warmup_min_ratio: 0.5, cos_min_ratio: 0.1, ..WarmupCosineLr::new(1.0) };
/// let schedule = Schedule::new("WarmupCosineLr", schedule).warmup(4);
/// let rates = [0, 1, 2, 4, 10].map(|update| schedule.rate(update, 10));
/// assert_eq!(rates, [0.0, 0.5, 0.75, 1.0, 0.1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmupCosineLr {
    /// The highest rate.
    pub lr: f64,
    /// The rate at the start of the warmup, as a share of `lr`. Default: 0.
    #[serde(default)]
    pub warmup_min_ratio: f64,
    /// The last rate, as a share of `lr`. Default: 0.0001.
    #[serde(default = "cos_min_ratio")]
    pub cos_min_ratio: f64,
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

fn cos_min_ratio() -> f64 {
    1e-4
}

impl WarmupCosineLr {
    /// Creates a schedule with DeepSpeed's defaults: up from 0 over 1000 updates, and down to `lr / 10000` at the end
    /// of the run.
    pub fn new(lr: f64) -> Self {
        Self {
            lr,
            warmup_min_ratio: 0.0,
            cos_min_ratio: cos_min_ratio(),
            warmup: thousand(),
            warmup_type: WarmupType::Log,
            total: None,
        }
    }
}

impl ScheduleRecipe for WarmupCosineLr {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let (warmup, total) = (updates(self.warmup, total), self.total.unwrap_or(total));
        match self.warmup_type.risen(update, warmup) {
            Some(_) if update == 0 => 0.0,
            Some(risen) => self.lr * (self.warmup_min_ratio + (1.0 - self.warmup_min_ratio) * risen),
            None => {
                let rest = total.saturating_sub(warmup).max(1);
                let progress = (update.saturating_sub(warmup) as f64 / rest as f64).min(1.0);
                self.lr * (self.cos_min_ratio + (1.0 - self.cos_min_ratio) * decay::cosine(progress))
            }
        }
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        above_zero("lr", self.lr)?;
        ratio("warmup_min_ratio", self.warmup_min_ratio)?;
        ratio("cos_min_ratio", self.cos_min_ratio)?;
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

    fn shared(&mut self) -> SharedSettings<'_> {
        SharedSettings { warmup: Some(&mut self.warmup), ..SharedSettings::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Schedule;

    #[test]
    fn the_first_rates_are_those_of_the_table() {
        let rates = |warmup_type| {
            let schedule = WarmupLr { warmup: 4.into(), warmup_type, ..WarmupLr::new(1.0) };
            [0, 1, 2, 3, 4, 5].map(|update| (schedule.rate(update, 9) * 1e4).round() / 1e4)
        };
        assert_eq!(rates(WarmupType::Log), [0.0, 0.0, 0.5, 0.7925, 1.0, 1.0]);
        assert_eq!(rates(WarmupType::Linear), [0.0, 0.0, 0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn no_warmup_is_none_and_one_update_is_two() {
        let rates = |warmup: u64| {
            let schedule = WarmupLr { warmup: warmup.into(), ..WarmupLr::new(1.0) };
            [0, 1, 2].map(|update| schedule.rate(update, 9))
        };
        assert_eq!(rates(0), [1.0; 3]);
        assert_eq!([rates(1), rates(2)], [[0.0, 0.0, 1.0]; 2]);
        let counted =
            |warmup: u64| Schedule::new("WarmupLr", WarmupLr::new(1.0)).warmup(warmup).warmup_updates(9);
        assert_eq!([0, 1, 2, 3].map(counted), [0, 2, 2, 3]);
    }

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
