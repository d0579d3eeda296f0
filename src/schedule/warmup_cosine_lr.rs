//! DeepSpeed's warmup with a cosine decay.

use serde::{Deserialize, Serialize};

use super::check::{above_zero, own_total, ratio, share};
use super::warmup_lr::{thousand, updates};
use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, WarmupType, decay};

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
