//! Learning rates as a function of the update.
//!
//! | here | Transformers | DeepSpeed | after a warmup of `w` updates, in a run of `T` |
//! |---|---|---|---|
//! | [`Constant`](Schedule::Constant) | `constant`, `constant_with_warmup` | | `lr` |
//! | [`Linear`](Schedule::Linear) | `linear` | | `m + (lr - m) · (1 - p)` |
//! | [`Cosine`](Schedule::Cosine) | `cosine`, `cosine_with_min_lr` | | `m + (lr - m) · (1 + cos πp) / 2` |
//! | [`CosineRestarts`](Schedule::CosineRestarts) | `cosine_with_restarts` | | `m + (lr - m) · (1 + cos π(cp mod 1)) / 2` |
//! | [`Polynomial`](Schedule::Polynomial) | `polynomial` | | `m + (lr - m) · (1 - p)^power` |
//! | [`InverseSqrt`](Schedule::InverseSqrt) | `inverse_sqrt` | | `lr · √(τ / (t - w + τ))` |
//! | [`Wsd`] | `warmup_stable_decay` | | `lr`, and at the end `m + (lr - m) · f(q)` |
//! | [`WarmupLr`] | | `WarmupLR` | `lr` |
//! | [`WarmupDecayLr`] | | `WarmupDecayLR` | `m + (lr - m) · (T - t + 1) / (T - w)` |
//! | [`WarmupCosineLr`] | | `WarmupCosineLR` | `lr · (r + (1 - r) · (1 + cos πp) / 2)` |
//! | [`OneCycle`] | | `OneCycle` | up from `m` to `lr`, down to `m`, then `m / (1 + rate · n)` |
//! | [`LrRangeTest`] | | `LRRangeTest` | `m · (1 + rate · t / size)` |
//!
//! `t` is the update, counted from 0, `p = (t - w) / (T - w)` is the progress through the run after the warmup, and `m`
//! is `min_lr`. Tests compare each schedule with the rates of the other implementation, to within 1e-12. Run files also
//! accept the names of DeepSpeed's schedules and parameters: `WarmupLR(warmup_max_lr: 1e-3, warmup_num_steps: 100)`.

mod builders;
mod check;
mod decay;
mod error;
mod lr_range_test;
mod lr_schedule;
mod one_cycle;
mod warmup;
mod warmup_cosine_lr;
mod warmup_lr;
mod wsd;

use serde::{Deserialize, Serialize};

pub use error::ScheduleError;
pub use lr_range_test::LrRangeTest;
pub use lr_schedule::{LrSchedule, of_burn};
pub use one_cycle::OneCycle;
pub use warmup::Warmup;
pub use warmup_cosine_lr::WarmupCosineLr;
pub use warmup_lr::{WarmupDecayLr, WarmupLr, WarmupType};
pub use wsd::{Wsd, WsdShape};

/// The learning rate of each update: a warmup, followed by the decay of the variant.
///
/// The [module](self) lists all variants in a table, with their names in other libraries. `p = (t - w) / (total - w)`
/// goes from 0 to 1 over the updates after the `w` updates of [warmup](Warmup). A skipped update does not advance `t`.
///
/// ```
/// use firebrick::Schedule;
///
/// let schedule = Schedule::cosine(1e-3).min_lr(1e-4).warmup(100);
/// assert!(schedule.rate(0, 2000) < 1.1e-5);
/// assert_eq!(schedule.rate(100, 2000), 1e-3);
/// assert_eq!(schedule.rate(2000, 2000), 1e-4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Schedule {
    /// A constant rate of `lr` after the warmup.
    Constant {
        /// The rate.
        lr: f64,
        /// Length of the warmup. Default: no warmup.
        #[serde(default)]
        warmup: Warmup,
        /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
        #[serde(default)]
        from_zero: bool,
    },
    /// `min_lr + (lr - min_lr) · (1 - p)`.
    Linear {
        /// The highest rate.
        lr: f64,
        /// The rate at the end of the run. Default: 0.
        #[serde(default)]
        min_lr: f64,
        /// Length of the warmup. Default: no warmup.
        #[serde(default)]
        warmup: Warmup,
        /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
        #[serde(default)]
        from_zero: bool,
    },
    /// `min_lr + (lr - min_lr) · (1 + cos πp) / 2` (Loshchilov & Hutter, 2017, arXiv:1608.03983). This is Transformers'
    /// cosine with its default `num_cycles` of 0.5. Past the end of the run the rate stays at `min_lr`, while in
    /// Transformers it rises again.
    Cosine {
        /// The highest rate.
        lr: f64,
        /// The rate at the end of the run. Default: 0.
        #[serde(default)]
        min_lr: f64,
        /// Length of the warmup. Default: no warmup.
        #[serde(default)]
        warmup: Warmup,
        /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
        #[serde(default)]
        from_zero: bool,
    },
    /// `min_lr + (lr - min_lr) · (1 + cos π(cycles · p mod 1)) / 2`: each cycle starts at `lr` again, without its own
    /// warmup (SGDR with equally spaced restarts, arXiv:1608.03983).
    CosineRestarts {
        /// The highest rate.
        lr: f64,
        /// The rate at the end of each cycle. Default: 0.
        #[serde(default)]
        min_lr: f64,
        /// Number of half waves, `num_cycles` in Transformers. Default: 1, which is `Cosine`.
        #[serde(default = "one_cycle", alias = "num_cycles")]
        cycles: u64,
        /// Length of the warmup. Default: no warmup.
        #[serde(default)]
        warmup: Warmup,
        /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
        #[serde(default)]
        from_zero: bool,
    },
    /// `min_lr + (lr - min_lr) · (1 - p)^power`.
    Polynomial {
        /// The highest rate.
        lr: f64,
        /// The rate at the end of the run, `lr_end` in Transformers. Default: 0; in Transformers, 1e-7.
        #[serde(default, alias = "lr_end")]
        min_lr: f64,
        /// The exponent. Default: 1, which is `Linear`.
        #[serde(default = "linear_power")]
        power: f64,
        /// Length of the warmup. Default: no warmup.
        #[serde(default)]
        warmup: Warmup,
        /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
        #[serde(default)]
        from_zero: bool,
    },
    /// `lr · √(timescale / (t - w + timescale))`: the rate falls for as long as the run continues, which needs no end
    /// (Zhai et al., 2022, arXiv:2106.04560).
    InverseSqrt {
        /// The highest rate.
        lr: f64,
        /// Number of updates after the warmup at which the rate is `lr / √2`. Default: the length of the warmup, or
        /// 10000 without one.
        #[serde(default)]
        timescale: Option<u64>,
        /// Length of the warmup. Default: no warmup.
        #[serde(default)]
        warmup: Warmup,
        /// Whether the [warmup](Warmup) starts at 0, as in Transformers. Default: no.
        #[serde(default)]
        from_zero: bool,
    },
    /// A high rate for most of the run, and a decay at its end.
    #[serde(alias = "WSD")]
    Wsd(Wsd),
    /// DeepSpeed's warmup.
    #[serde(alias = "WarmupLR")]
    WarmupLr(WarmupLr),
    /// DeepSpeed's warmup, followed by a linear decay.
    #[serde(alias = "WarmupDecayLR")]
    WarmupDecayLr(WarmupDecayLr),
    /// DeepSpeed's warmup, followed by half a cosine wave.
    #[serde(alias = "WarmupCosineLR")]
    WarmupCosineLr(WarmupCosineLr),
    /// A rise, a fall, and a further decay.
    OneCycle(OneCycle),
    /// A rise until the loss shows which rate is too high.
    #[serde(alias = "LRRangeTest")]
    LrRangeTest(LrRangeTest),
}

fn one_cycle() -> u64 {
    1
}

fn linear_power() -> f64 {
    1.0
}

impl Schedule {
    /// Returns the rate of update `update`, counted from 0, in a run of `total` updates.
    ///
    /// The rate of a schedule that [`check`](Self::check) rejects has no meaning.
    pub fn rate(&self, update: u64, total: u64) -> f64 {
        let (lr, warmup, from_zero) = match *self {
            Self::Constant { lr, warmup, from_zero }
            | Self::Linear { lr, warmup, from_zero, .. }
            | Self::Cosine { lr, warmup, from_zero, .. }
            | Self::CosineRestarts { lr, warmup, from_zero, .. }
            | Self::Polynomial { lr, warmup, from_zero, .. }
            | Self::InverseSqrt { lr, warmup, from_zero, .. } => (lr, warmup.updates(total), from_zero),
            Self::Wsd(wsd) => return wsd.rate(update, total),
            Self::WarmupLr(schedule) => return schedule.rate(update, total),
            Self::WarmupDecayLr(schedule) => return schedule.rate(update, total),
            Self::WarmupCosineLr(schedule) => return schedule.rate(update, total),
            Self::OneCycle(schedule) => return schedule.rate(update),
            Self::LrRangeTest(test) => return test.rate(update),
        };
        if update < warmup {
            let (risen, of) = warmup::risen(update, warmup, from_zero);
            return lr * risen / of;
        }
        let (done, rest) = (update - warmup, total.saturating_sub(warmup).max(1));
        let progress = (done as f64 / rest as f64).min(1.0);
        let between = |min_lr: f64, share: f64| min_lr + (lr - min_lr) * share;
        match *self {
            Self::Linear { min_lr, .. } => between(min_lr, decay::linear(progress)),
            Self::Cosine { min_lr, .. } => between(min_lr, decay::cosine(progress)),
            Self::CosineRestarts { min_lr, cycles, .. } => {
                between(min_lr, decay::cosine(decay::in_cycle(done, rest, cycles)))
            }
            Self::Polynomial { min_lr, power, .. } => between(min_lr, decay::linear(progress).powf(power)),
            Self::InverseSqrt { timescale, .. } => lr * decay::inverse_sqrt(done, timescale, warmup),
            _ => lr,
        }
    }

    /// Returns each update of a run of `total`, counted from 0, with its rate: the points of a plot.
    ///
    /// ```
    /// use firebrick::Schedule;
    ///
    /// let points: Vec<_> = Schedule::linear(1.0).points(4).collect();
    /// assert_eq!(points, [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.25)]);
    /// ```
    pub fn points(self, total: u64) -> impl Iterator<Item = (u64, f64)> {
        (0..total).map(move |update| (update, self.rate(update, total)))
    }

    /// Returns the number of updates before the highest rate in a run of `total`. A range test has none.
    pub fn warmup_updates(&self, total: u64) -> u64 {
        match *self {
            Self::Constant { warmup, .. }
            | Self::Linear { warmup, .. }
            | Self::Cosine { warmup, .. }
            | Self::CosineRestarts { warmup, .. }
            | Self::Polynomial { warmup, .. }
            | Self::InverseSqrt { warmup, .. }
            | Self::Wsd(Wsd { warmup, .. }) => warmup.updates(total),
            Self::WarmupLr(WarmupLr { warmup, .. })
            | Self::WarmupDecayLr(WarmupDecayLr { warmup, .. })
            | Self::WarmupCosineLr(WarmupCosineLr { warmup, .. }) => warmup_lr::updates(warmup, total),
            Self::OneCycle(OneCycle { first_step_size, .. }) => first_step_size,
            Self::LrRangeTest(_) => 0,
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
