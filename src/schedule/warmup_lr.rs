//! DeepSpeed's warmup.

use serde::{Deserialize, Serialize};

use super::check::{above_zero, at_most, share};
use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup};

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
}
