//! Warmup, stable, decay.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::check::{above_zero, at_most, not_zero, share};
use super::recipe::shorten_warmup;
use super::{ScheduleError, ScheduleRecipe, SharedSettings, Shortened, Warmup, decay, warmup};

/// Warmup, stable, decay (Hu et al., 2024, arXiv:2404.06395): rises to `lr`, stays there for most of the run, and falls
/// to `min_lr` at its end. You can continue training from a checkpoint of the stable phase.
///
/// With `s` updates at `lr` and `d` of decay, the warmup is at `min_lr + (lr - min_lr) · g(v)`, where `v` goes from 0
/// to 1 as in [`Warmup`], and the decay is at `min_lr + (lr - min_lr) · f(q)`, where `q = (t - w - s) / d`. After the
/// decay the rate stays at `min_lr`. This is Transformers' `get_wsd_schedule` with `min_lr_ratio = min_lr / lr` and the
/// default `num_cycles` of 0.5. As in Transformers, the warmup starts from `min_lr`.
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::{Wsd, WsdShape};
///
/// let schedule = Wsd { decay_type: WsdShape::OneMinusSqrt, ..Wsd::new(1.0, 100) };
/// let schedule = Schedule::new("Wsd", schedule).warmup(50);
/// let rates = [50, 899, 900, 925, 1000].map(|update| schedule.rate(update, 1000));
/// assert_eq!(rates, [1.0, 1.0, 1.0, 0.5, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wsd {
    /// The highest rate.
    pub lr: f64,
    /// The rate at the end of the decay. Default: 0.
    #[serde(default)]
    pub min_lr: f64,
    /// Length of the warmup. Default: no warmup.
    #[serde(default, alias = "num_warmup_steps")]
    pub warmup: Warmup,
    /// Number of updates at `lr`. Default: the rest of the run between warmup and decay.
    #[serde(alias = "num_stable_steps")]
    pub stable: Option<u64>,
    /// Number of updates of the decay.
    #[serde(alias = "num_decay_steps")]
    pub decay: u64,
    /// The shape of the warmup. Default: `Linear`.
    #[serde(default = "linear")]
    pub warmup_type: WsdShape,
    /// The shape of the decay. Default: `Cosine`.
    #[serde(default = "cosine")]
    pub decay_type: WsdShape,
    /// Whether the [warmup](Warmup) starts at `min_lr`, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

/// The shape of a warmup or of a decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WsdShape {
    /// Rises with `g(v) = v`, falls with `f(q) = 1 - q`.
    #[serde(alias = "linear")]
    Linear,
    /// Rises with `(1 - cos πv) / 2`, falls with `(1 + cos πq) / 2`.
    #[serde(alias = "cosine")]
    Cosine,
    /// Rises with `1 - √(1 - v)`, falls with `1 - √q`; `1-sqrt` in Transformers.
    #[serde(alias = "1-sqrt")]
    OneMinusSqrt,
}

fn linear() -> WsdShape {
    WsdShape::Linear
}

fn cosine() -> WsdShape {
    WsdShape::Cosine
}

impl Wsd {
    /// Creates a schedule that stays at `lr` until the last `decay` updates, which take it to 0.
    pub fn new(lr: f64, decay: u64) -> Self {
        Self {
            lr,
            min_lr: 0.0,
            warmup: Warmup::default(),
            stable: None,
            decay,
            warmup_type: linear(),
            decay_type: cosine(),
            from_zero: false,
        }
    }

    fn stable_updates(&self, total: u64) -> u64 {
        let left = || total.saturating_sub(self.warmup.updates(total)).saturating_sub(self.decay);
        self.stable.unwrap_or_else(left)
    }
}

impl ScheduleRecipe for Wsd {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let warmup = self.warmup.updates(total);
        let between = |share: f64| decay::between(self.min_lr, self.lr, share);
        if update < warmup {
            let (risen, of) = warmup::risen(update, warmup, self.from_zero);
            return between(self.warmup_type.up(risen / of));
        }
        match (update - warmup).checked_sub(self.stable_updates(total)) {
            None => self.lr,
            Some(done) if done < self.decay => between(self.decay_type.down(done as f64 / self.decay as f64)),
            Some(_) => self.min_lr,
        }
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        above_zero("lr", self.lr)?;
        at_most("min_lr", self.min_lr, "lr", self.lr)?;
        not_zero("decay", self.decay)?;
        share(self.warmup)
    }

    fn warmup_updates(&self, total: u64) -> u64 {
        self.warmup.updates(total)
    }

    fn needs_length(&self) -> Option<&'static str> {
        let rest = self.stable.is_none().then_some("give its `stable`");
        rest.or(self.warmup.needs_length())
    }

    fn check_length(&self, total: Option<u64>) -> Result<(), ScheduleError> {
        let Some(total) = total else { return Ok(()) };
        let stable = self.stable.unwrap_or(0);
        let phases = self.warmup.updates(total).saturating_add(stable).saturating_add(self.decay);
        let field = if stable > 0 { "stable" } else { "decay" };
        if phases > total { Err(ScheduleError::Phases { field, phases, total }) } else { Ok(()) }
    }

    fn shorten(&mut self, total: u64) -> Vec<Shortened> {
        let (setting, from) = (self.warmup_setting(), self.warmup_updates(total));
        let warmup = shorten_warmup(setting, Some(&mut self.warmup), from, total);
        let mut shortened: Vec<_> = warmup.into_iter().collect();
        let left = total.saturating_sub(self.warmup.updates(total));
        if self.decay > left {
            let to = (total / 5).clamp(1, left.max(1));
            shortened.push(Shortened { setting: "decay", from: self.decay, to });
            self.decay = to;
        }
        let left = left.saturating_sub(self.decay);
        if let Some(from) = self.stable.filter(|stable| *stable > left) {
            shortened.push(Shortened { setting: "stable", from, to: left });
            self.stable = Some(left);
        }
        shortened
    }

    fn shared(&mut self) -> SharedSettings<'_> {
        SharedSettings {
            min_lr: Some(&mut self.min_lr),
            warmup: Some(&mut self.warmup),
            from_zero: Some(&mut self.from_zero),
        }
    }
}

impl WsdShape {
    fn up(self, progress: f64) -> f64 {
        match self {
            Self::Linear => progress,
            Self::Cosine => (1.0 - (PI * progress).cos()) / 2.0,
            Self::OneMinusSqrt => decay::one_minus_sqrt(1.0 - progress),
        }
    }

    fn down(self, progress: f64) -> f64 {
        match self {
            Self::Linear => decay::linear(progress),
            Self::Cosine => decay::cosine(progress),
            Self::OneMinusSqrt => decay::one_minus_sqrt(progress),
        }
    }
}
