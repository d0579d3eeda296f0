//! Learning rates as a function of the update.
//!
//! | here | Transformers | DeepSpeed | after a warmup of `w` updates, in a run of `T` |
//! |---|---|---|---|
//! | [`Constant`] | `constant`, `constant_with_warmup` | | `lr` |
//! | [`Linear`] | `linear` | | `m + (lr - m) · (1 - p)` |
//! | [`Cosine`] | `cosine`, `cosine_with_min_lr` | | `m + (lr - m) · (1 + cos πp) / 2` |
//! | [`CosineRestarts`] | `cosine_with_restarts` | | `m + (lr - m) · (1 + cos π(cp mod 1)) / 2` |
//! | [`Polynomial`] | `polynomial` | | `m + (lr - m) · (1 - p)^power` |
//! | [`InverseSqrt`] | `inverse_sqrt` | | `lr · √(τ / (t - w + τ))` |
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
//!
//! ```text
//! recipe.rs       ScheduleRecipe: what a kind of schedule says about itself, and how it is shortened for a short run
//! check.rs        checks of settings, and ScheduleError
//! warmup.rs       Warmup, and its rates
//! decay.rs        Constant, Linear, Cosine, CosineRestarts, Polynomial and InverseSqrt
//! wsd.rs          Wsd
//! warmup_lr.rs    DeepSpeed's WarmupLr, WarmupDecayLr and WarmupCosineLr
//! one_cycle.rs    DeepSpeed's OneCycle and LrRangeTest
//! lr_schedule.rs  LrSchedule: schedules, functions and Burn's schedulers
//! ```

pub mod check;
mod decay;
mod lr_schedule;
mod one_cycle;
mod recipe;
mod warmup;
mod warmup_lr;
mod wsd;

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use firebrick_strategies::registry::{Named, Registered, Registry};
use serde::{Deserialize, Serialize};

pub use check::ScheduleError;
pub use decay::{Constant, Cosine, CosineRestarts, InverseSqrt, Linear, Polynomial};
pub use lr_schedule::{LrSchedule, of_burn};
pub use one_cycle::{LrRangeTest, OneCycle};
pub use recipe::{AnySchedule, ScheduleRecipe, SharedSettings, Shortened};
pub use warmup::Warmup;
pub use warmup_lr::{WarmupCosineLr, WarmupDecayLr, WarmupLr, WarmupType};
pub use wsd::{Wsd, WsdShape};

/// The learning rate of each update: a warmup, followed by the decay of the kind.
///
/// The [module](self) lists all kinds in a table, with their names in other libraries. `p = (t - w) / (total - w)` goes
/// from 0 to 1 over the updates after the `w` updates of [warmup](Warmup). A skipped update does not advance `t`.
///
/// ```
/// use firebrick::Schedule;
///
/// let schedule = Schedule::cosine(1e-3).min_lr(1e-4).warmup(100);
/// assert!(schedule.rate(0, 2000) < 1.1e-5);
/// assert_eq!(schedule.rate(100, 2000), 1e-3);
/// assert_eq!(schedule.rate(2000, 2000), 1e-4);
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schedule(Named<dyn AnySchedule>);

/// The kinds of schedules that a run file can name. [`ScheduleRecipe`] has an example of your own.
pub type Schedules = Registry<dyn AnySchedule>;

impl Registered for dyn AnySchedule {
    const KIND: &'static str = "a schedule";

    fn built_in() -> Schedules {
        Schedules::default()
            .with::<Constant>("Constant", Schedule::named)
            .with::<Linear>("Linear", Schedule::named)
            .with::<Cosine>("Cosine", Schedule::named)
            .with::<CosineRestarts>("CosineRestarts", Schedule::named)
            .with::<Polynomial>("Polynomial", Schedule::named)
            .with::<InverseSqrt>("InverseSqrt", Schedule::named)
            .with::<Wsd>("Wsd", Schedule::named)
            .also("WSD")
            .with::<WarmupLr>("WarmupLr", Schedule::named)
            .also("WarmupLR")
            .with::<WarmupDecayLr>("WarmupDecayLr", Schedule::named)
            .also("WarmupDecayLR")
            .with::<WarmupCosineLr>("WarmupCosineLr", Schedule::named)
            .also("WarmupCosineLR")
            .with::<OneCycle>("OneCycle", Schedule::named)
            .with::<LrRangeTest>("LrRangeTest", Schedule::named)
            .also("LRRangeTest")
    }
}

impl Schedule {
    /// Creates a schedule of a kind that is [registered](Schedules) by this name.
    ///
    /// ```
    /// use firebrick::Schedule;
    /// use firebrick::schedule::OneCycle;
    ///
    /// let schedule = Schedule::new("OneCycle", OneCycle::new(1e-4, 1e-3));
    /// assert_eq!(schedule.peak(), 1e-3);
    /// ```
    pub fn new<R: ScheduleRecipe + Clone + PartialEq + Serialize + 'static>(
        name: &'static str,
        recipe: R,
    ) -> Self {
        Self(Self::named(name, recipe))
    }

    /// Names a recipe: the function by which [`Schedules`] registers it.
    pub fn named<R: ScheduleRecipe + Clone + PartialEq + Serialize + 'static>(
        name: &'static str,
        recipe: R,
    ) -> Named<dyn AnySchedule> {
        let recipe = Arc::new(recipe);
        Named::of(name, recipe.clone(), recipe)
    }

    /// Returns the recipe if it is of this kind.
    pub fn downcast_ref<R: 'static>(&self) -> Option<&R> {
        self.0.downcast_ref()
    }

    /// Returns the rate of update `update`, counted from 0, in a run of `total` updates.
    ///
    /// The rate of a schedule that [`check`](Self::check) rejects has no meaning.
    pub fn rate(&self, update: u64, total: u64) -> f64 {
        self.0.rate(update, total)
    }

    /// Returns each update of a run of `total`, counted from 0, with its rate: the points of a plot.
    ///
    /// ```
    /// use firebrick::Schedule;
    ///
    /// let points: Vec<_> = Schedule::linear(1.0).points(4).collect();
    /// assert_eq!(points, [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.25)]);
    /// ```
    pub fn points(&self, total: u64) -> impl Iterator<Item = (u64, f64)> {
        (0..total).map(move |update| (update, self.rate(update, total)))
    }

    /// Returns the number of updates before the highest rate in a run of `total`. A range test has none.
    pub fn warmup_updates(&self, total: u64) -> u64 {
        self.0.warmup_updates(total)
    }

    /// Returns the highest rate, or the first rate of a range test.
    pub fn peak(&self) -> f64 {
        self.0.peak()
    }

    /// Checks that the schedule is valid in a run of `total` updates, or in a run of unknown length (`None`).
    ///
    /// # Errors
    ///
    /// The error names the first invalid field: a number that is negative or not finite, a lowest rate above the
    /// highest, a count of 0 that must be at least 1, phases that do not end within the run, or a schedule that is
    /// stretched over a run of unknown length.
    ///
    /// ```
    /// use firebrick::{Schedule, ScheduleError};
    ///
    /// let schedule = Schedule::cosine(1e-3).warmup(100);
    /// assert_eq!(schedule.check(Some(2000)), Ok(()));
    /// let short = schedule.check(Some(100)).unwrap_err();
    /// assert!(short.to_string().ends_with("shorten the warmup, or train for longer"));
    /// assert!(matches!(schedule.check(None), Err(ScheduleError::NoEnd { schedule: "Cosine", .. })));
    /// ```
    pub fn check(&self, total: Option<u64>) -> Result<(), ScheduleError> {
        self.check_numbers()?;
        match (total, self.0.needs_length()) {
            (None, Some(instead)) => {
                return Err(ScheduleError::NoEnd { schedule: self.0.name(), instead });
            }
            (Some(total), _) if self.warmup_updates(total) >= total => {
                let (field, warmup) = (self.0.warmup_setting(), self.warmup_updates(total));
                return Err(ScheduleError::Warmup { field, warmup, total });
            }
            _ => {}
        }
        self.0.check_length(total)
    }

    /// Returns the schedule with its phases shortened to end within a run of `total` updates, and what was shortened. A
    /// warmup that is too long becomes a tenth of the run.
    ///
    /// ```
    /// use firebrick::Schedule;
    ///
    /// let (schedule, shortened) = Schedule::cosine(1e-3).warmup(100).shortened(50);
    /// assert_eq!(schedule, Schedule::cosine(1e-3).warmup(5));
    /// assert_eq!((shortened[0].setting, shortened[0].from, shortened[0].to), ("warmup", 100, 5));
    /// ```
    pub fn shortened(&self, total: u64) -> (Self, Vec<Shortened>) {
        self.0.shortened(self.0.name(), total)
    }

    /// Returns the names that the setting of the highest rate may have in a run file, the usual one first.
    pub fn rate_settings(&self) -> &'static [&'static str] {
        self.0.rate_settings()
    }

    /// Checks what does not depend on the length of the run.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check) that concern single fields.
    pub fn check_numbers(&self) -> Result<(), ScheduleError> {
        self.0.check_numbers()
    }
}

/// Prints the recipe.
impl Debug for Schedule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Schedule {
    /// Creates a schedule with the same rate for all updates.
    pub fn constant(lr: f64) -> Self {
        Self::new("Constant", Constant { lr, warmup: Warmup::default(), from_zero: false })
    }

    /// Creates a schedule that falls linearly from `lr` to 0.
    pub fn linear(lr: f64) -> Self {
        Self::new("Linear", Linear { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false })
    }

    /// Creates a schedule that falls from `lr` to 0 along half a cosine wave.
    pub fn cosine(lr: f64) -> Self {
        Self::new("Cosine", Cosine { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false })
    }

    /// Creates a schedule of `cycles` half cosine waves, each from `lr` to 0.
    pub fn cosine_restarts(lr: f64, cycles: u64) -> Self {
        let warmup = Warmup::default();
        Self::new("CosineRestarts", CosineRestarts { lr, min_lr: 0.0, cycles, warmup, from_zero: false })
    }

    /// Creates a schedule that falls from `lr` to 0 as a linear decay raised to `power`.
    pub fn polynomial(lr: f64, power: f64) -> Self {
        let warmup = Warmup::default();
        Self::new("Polynomial", Polynomial { lr, min_lr: 0.0, power, warmup, from_zero: false })
    }

    /// Creates a schedule that falls from `lr` with the inverse square root of the update.
    pub fn inverse_sqrt(lr: f64) -> Self {
        let warmup = Warmup::default();
        Self::new("InverseSqrt", InverseSqrt { lr, timescale: None, warmup, from_zero: false })
    }

    /// Creates a schedule that stays at `lr` until the last `decay` updates, which take it to 0.
    pub fn wsd(lr: f64, decay: u64) -> Self {
        Self::new("Wsd", Wsd::new(lr, decay))
    }

    /// Sets the final rate, which is 0 by default. Has no effect on schedules whose final rate is not `min_lr`:
    /// `Constant`, `InverseSqrt`, `WarmupLr`, `WarmupCosineLr`, `OneCycle` and `LrRangeTest`.
    pub fn min_lr(self, rate: f64) -> Self {
        self.with_shared(|shared| shared.min_lr.into_iter().for_each(|min_lr| *min_lr = rate))
    }

    /// Sets the warmup, in which the rate rises to the highest one: a number of updates, or a [`Warmup::Ratio`] of the
    /// run. Has no effect on `OneCycle` and `LrRangeTest`, which have no warmup.
    pub fn warmup(self, length: impl Into<Warmup>) -> Self {
        let length = length.into();
        self.with_shared(|shared| shared.warmup.into_iter().for_each(|warmup| *warmup = length))
    }

    /// Starts the [`Warmup`] at 0 as in Transformers, or at the lowest rate for `Wsd`. Has no effect on DeepSpeed's
    /// schedules, whose first update is at the lowest rate anyway.
    pub fn from_zero(self) -> Self {
        self.with_shared(|shared| shared.from_zero.into_iter().for_each(|from_zero| *from_zero = true))
    }

    fn with_shared(&self, mut set: impl FnMut(SharedSettings<'_>)) -> Self {
        self.0.with_shared(self.0.name(), &mut set)
    }
}

#[cfg(all(test, feature = "ron"))]
mod tests;
