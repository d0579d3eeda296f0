//! Schedules that differ only in their decay after the warmup: constant, linear, cosine, cosine with restarts, polynomial
//! and inverse square root.

use std::f64::consts::PI;
use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use super::{ScheduleError, ScheduleRecipe, SharedSettings, Warmup, check};

/// A schedule whose rate after the [warmup](Warmup) is `min_lr + (lr - min_lr) · share`. Such schedules differ in the
/// share alone.
trait Decay: Copy + Debug + Send + Sync {
    /// Whether the share depends on the length of the run.
    const ENDS: bool = true;

    /// Returns the highest rate, and the other settings that such schedules have.
    fn settings(&mut self) -> (f64, SharedSettings<'_>);

    /// Returns the share of the way from the lowest to the highest rate.
    fn share(&self, after: After) -> f64;

    /// Checks the ranges of settings that only this schedule has. Default: there are none.
    fn check_own(&self) -> Result<(), ScheduleError> {
        Ok(())
    }
}

/// A place after the warmup.
struct After {
    /// Updates since the warmup.
    done: u64,
    /// Updates from the warmup to the end of the run.
    rest: u64,
    /// Updates of the warmup.
    warmup: u64,
}

/// The values of a decay's settings.
struct Values {
    lr: f64,
    min_lr: f64,
    warmup: Warmup,
    from_zero: bool,
}

impl Values {
    fn of(mut decay: impl Decay) -> Self {
        let (lr, SharedSettings { min_lr, warmup, from_zero }) = decay.settings();
        Self {
            lr,
            min_lr: min_lr.copied().unwrap_or_default(),
            warmup: warmup.copied().unwrap_or_default(),
            from_zero: from_zero.copied().unwrap_or_default(),
        }
    }
}

impl<D: Decay> ScheduleRecipe for D {
    fn rate(&self, update: u64, total: u64) -> f64 {
        let Values { lr, min_lr, warmup, from_zero } = Values::of(*self);
        warmup.then(lr, from_zero, update, total, |done, rest| {
            between(min_lr, lr, self.share(After { done, rest, warmup: warmup.updates(total) }))
        })
    }

    fn peak(&self) -> f64 {
        Values::of(*self).lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        let Values { lr, min_lr, warmup, .. } = Values::of(*self);
        check::above_zero("lr", lr)?;
        check::at_most("min_lr", min_lr, "lr", lr)?;
        self.check_own()?;
        check::share(warmup)
    }

    fn warmup_updates(&self, total: u64) -> u64 {
        Values::of(*self).warmup.updates(total)
    }

    fn needs_length(&self) -> Option<&'static str> {
        if D::ENDS { Some(check::TAKE_ONE_WITHOUT_END) } else { Values::of(*self).warmup.needs_length() }
    }

    fn shared(&mut self) -> SharedSettings<'_> {
        self.settings().1
    }
}

impl After {
    /// Returns the progress through the run: 1 at its end and after it.
    fn progress(&self) -> f64 {
        (self.done as f64 / self.rest as f64).min(1.0)
    }

    /// Returns the progress within the current one of `cycles` equal cycles; 1 at the end of the last. Integer
    /// arithmetic finds the first update of a cycle, which `cycles · p mod 1` in floats may miss.
    fn progress_in_cycle(&self, cycles: u64) -> f64 {
        if self.done >= self.rest {
            return 1.0;
        }
        let within = u128::from(self.done) * u128::from(cycles) % u128::from(self.rest);
        within as f64 / self.rest as f64
    }

    /// `√(τ / (t + τ))`, `t` updates after the warmup. It approaches 0 but never reaches it. `τ` defaults to the length
    /// of the warmup, or to 10000 without one.
    fn inverse_sqrt(&self, timescale: Option<u64>) -> f64 {
        let timescale = timescale.unwrap_or(if self.warmup == 0 { 10_000 } else { self.warmup }) as f64;
        (timescale / (self.done as f64 + timescale)).sqrt()
    }
}

/// Returns the rate at a share of the way from the lowest to the highest.
pub(super) fn between(min_lr: f64, lr: f64, share: f64) -> f64 {
    min_lr + (lr - min_lr) * share
}

/// `1 - p`.
pub(super) fn linear(progress: f64) -> f64 {
    1.0 - progress
}

/// `(1 + cos πp) / 2`.
pub(super) fn cosine(progress: f64) -> f64 {
    (1.0 + (PI * progress).cos()) / 2.0
}

/// `1 - √p`.
pub(super) fn one_minus_sqrt(progress: f64) -> f64 {
    1.0 - progress.sqrt()
}

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

impl Decay for Constant {
    const ENDS: bool = false;

    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, warmup, from_zero } = self;
        (*lr, SharedSettings { min_lr: None, warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, _: After) -> f64 {
        1.0
    }
}

/// `min_lr + (lr - min_lr) · (1 - p)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
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

impl Decay for Linear {
    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, min_lr, warmup, from_zero } = self;
        (*lr, SharedSettings { min_lr: Some(min_lr), warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        linear(after.progress())
    }
}

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

impl Decay for Cosine {
    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, min_lr, warmup, from_zero } = self;
        (*lr, SharedSettings { min_lr: Some(min_lr), warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        cosine(after.progress())
    }
}

/// `min_lr + (lr - min_lr) · (1 + cos π(cycles · p mod 1)) / 2`: each cycle starts at `lr` again, without its own warmup
/// (SGDR with equally spaced restarts, arXiv:1608.03983).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CosineRestarts {
    /// The highest rate.
    pub lr: f64,
    /// The rate at the end of each cycle. Default: 0.
    #[serde(default)]
    pub min_lr: f64,
    /// Number of half waves, `num_cycles` in Transformers. Default: 1, which is `Cosine`.
    #[serde(default = "one_cycle", alias = "num_cycles")]
    pub cycles: u64,
    /// Length of the warmup. Default: no warmup.
    #[serde(default)]
    pub warmup: Warmup,
    /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
    #[serde(default)]
    pub from_zero: bool,
}

fn one_cycle() -> u64 {
    1
}

impl Decay for CosineRestarts {
    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, min_lr, warmup, from_zero, .. } = self;
        (*lr, SharedSettings { min_lr: Some(min_lr), warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        cosine(after.progress_in_cycle(self.cycles))
    }

    fn check_own(&self) -> Result<(), ScheduleError> {
        check::not_zero("cycles", self.cycles)
    }
}

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

impl Decay for Polynomial {
    fn settings(&mut self) -> (f64, SharedSettings<'_>) {
        let Self { lr, min_lr, warmup, from_zero, .. } = self;
        (*lr, SharedSettings { min_lr: Some(min_lr), warmup: Some(warmup), from_zero: Some(from_zero) })
    }

    fn share(&self, after: After) -> f64 {
        linear(after.progress()).powf(self.power)
    }

    fn check_own(&self) -> Result<(), ScheduleError> {
        check::above_zero("power", self.power)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fall_from_one_to_zero() {
        for shape in [linear, cosine, one_minus_sqrt] {
            assert_eq!([shape(0.0), shape(1.0)], [1.0, 0.0]);
            let half = shape(0.5);
            assert!(0.2 < half && half < 0.6, "{half}");
        }
    }

    fn in_cycle(done: u64, rest: u64, cycles: u64) -> f64 {
        After { done, rest, warmup: 0 }.progress_in_cycle(cycles)
    }

    #[test]
    fn each_cycle_starts_at_the_first_update_of_it() {
        // 49 times the float nearest to 1/49 is less than 1.
        for cycles in 1..=100 {
            let starts = (0..cycles * 7).filter(|done| in_cycle(*done, cycles * 7, cycles) == 0.0);
            assert!(starts.eq((0..cycles).map(|cycle| cycle * 7)), "{cycles}");
        }
        assert_eq!(in_cycle(10, 10, 3), 1.0);
        assert_eq!(in_cycle(u64::MAX - 1, u64::MAX, u64::MAX), 0.0);
    }

    #[test]
    fn an_inverse_root_halves_at_three_times_its_scale() {
        let inverse_sqrt = |done, timescale, warmup| After { done, rest: 1, warmup }.inverse_sqrt(timescale);
        assert_eq!(inverse_sqrt(30, Some(10), 99), 0.5);
        assert_eq!(inverse_sqrt(60, None, 20), 0.5);
        let inverse_sqrt = |done, timescale, warmup| After { done, rest: 1, warmup }.inverse_sqrt(timescale);
        assert_eq!(inverse_sqrt(30_000, None, 0), 0.5);
    }
}
