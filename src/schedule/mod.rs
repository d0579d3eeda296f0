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
//! recipe.rs       ScheduleRecipe: what a kind of schedule says about itself
//! builders.rs     constructors and builder methods
//! check.rs        checks of settings
//! warmup.rs       Warmup, and its rates
//! decay.rs        shapes of decays
//! shortened.rs    phases that are shortened for a short run
//! saved.rs        whether a checkpoint can hold a schedule
//! lr_schedule.rs  LrSchedule: schedules, functions and Burn's schedulers
//! *.rs            one file for each kind
//! ```

mod builders;
pub mod check;
mod constant;
mod cosine;
mod cosine_restarts;
mod decay;
mod error;
mod inverse_sqrt;
mod linear;
mod lr_range_test;
mod lr_schedule;
mod one_cycle;
mod polynomial;
mod recipe;
mod saved;
mod shortened;
mod warmup;
mod warmup_cosine_lr;
mod warmup_decay_lr;
mod warmup_lr;
mod wsd;

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use firebrick_strategies::registry::{Named, Registered, Registry};
use serde::{Deserialize, Serialize};

pub use constant::Constant;
pub use cosine::Cosine;
pub use cosine_restarts::CosineRestarts;
pub use error::ScheduleError;
pub use inverse_sqrt::InverseSqrt;
pub use linear::Linear;
pub use lr_range_test::LrRangeTest;
pub use lr_schedule::{LrSchedule, of_burn};
pub use one_cycle::OneCycle;
pub use polynomial::Polynomial;
pub use recipe::{AnySchedule, ScheduleRecipe, SharedSettings};
pub use shortened::Shortened;
pub use warmup::Warmup;
pub use warmup_cosine_lr::WarmupCosineLr;
pub use warmup_decay_lr::WarmupDecayLr;
pub use warmup_lr::{WarmupLr, WarmupType};
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

#[cfg(all(test, feature = "ron"))]
mod properties;
#[cfg(all(test, feature = "ron"))]
mod tests;
