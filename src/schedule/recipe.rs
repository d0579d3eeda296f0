//! What a kind of schedule says about itself.

use std::fmt::Debug;

use serde::Serialize;

use super::shortened::{Shortened, shorten_warmup};
use super::{Schedule, ScheduleError, Warmup};

/// The recipe of a schedule: its settings, and everything that other parts of the program need to know about it.
///
/// A recipe that also implements `Clone`, `PartialEq` and serde's traits is an entry of the run file once it is
/// [registered](super::Schedules). Its settings are named fields:
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::{ScheduleError, ScheduleRecipe, Schedules, check};
/// use serde::{Deserialize, Serialize};
///
/// /// A rate that is halved every `updates` updates.
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Halved {
///     lr: f64,
///     updates: u64,
/// }
///
/// impl ScheduleRecipe for Halved {
///     fn rate(&self, update: u64, _: u64) -> f64 {
///         self.lr * 0.5f64.powi((update / self.updates) as i32)
///     }
///
///     fn peak(&self) -> f64 {
///         self.lr
///     }
///
///     fn check_numbers(&self) -> Result<(), ScheduleError> {
///         check::above_zero("lr", self.lr)?;
///         check::not_zero("updates", self.updates)
///     }
/// }
///
/// Schedules::built_in().with::<Halved>("Halved", Schedule::named).install(); // `schedule: Halved(lr: 1e-3, updates: 100)`
/// let schedule = Schedule::new("Halved", Halved { lr: 1e-3, updates: 100 });
/// assert_eq!(schedule.rate(250, 1000), 0.25e-3);
/// ```
pub trait ScheduleRecipe: Debug + Send + Sync {
    /// Returns the rate of update `update`, counted from 0, in a run of `total` updates.
    ///
    /// The rate of a schedule whose check fails has no meaning.
    fn rate(&self, update: u64, total: u64) -> f64;

    /// Returns the highest rate.
    fn peak(&self) -> f64;

    /// Checks the ranges of the settings.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    fn check_numbers(&self) -> Result<(), ScheduleError>;

    /// Returns the number of updates before the highest rate in a run of `total`. Default: 0.
    fn warmup_updates(&self, total: u64) -> u64 {
        let _ = total;
        0
    }

    /// Returns the name of the setting that gives the length of the warmup.
    fn warmup_setting(&self) -> &'static str {
        "warmup"
    }

    /// Returns what to do in a run of unknown length, if a rate depends on the length. Default: no rate does.
    fn needs_length(&self) -> Option<&'static str> {
        None
    }

    /// Checks that the schedule fits a run of `total` updates, or one of unknown length. It is called once the warmup is
    /// known to end within the run. Default: every run is long enough.
    ///
    /// # Errors
    ///
    /// The run is too short or too long.
    fn check_length(&self, total: Option<u64>) -> Result<(), ScheduleError> {
        let _ = total;
        Ok(())
    }

    /// Returns the names that the setting of the highest rate may have in a run file, the usual one first.
    fn rate_settings(&self) -> &'static [&'static str] {
        &["lr"]
    }

    /// Shortens what does not end within a run of `total` updates, and returns what it has shortened. Default: the
    /// [shared](Self::shared) warmup.
    fn shorten(&mut self, total: u64) -> Vec<Shortened> {
        let (setting, from) = (self.warmup_setting(), self.warmup_updates(total));
        shorten_warmup(setting, self.shared().warmup, from, total).into_iter().collect()
    }

    /// Returns the settings that [`Schedule::min_lr`], [`Schedule::warmup`] and [`Schedule::from_zero`] set. Default:
    /// those methods have no effect.
    fn shared(&mut self) -> SharedSettings<'_> {
        SharedSettings::default()
    }
}

/// Settings that many schedules have, as far as one has them.
#[derive(Debug, Default)]
pub struct SharedSettings<'a> {
    /// The final rate.
    pub min_lr: Option<&'a mut f64>,
    /// The length of the warmup.
    pub warmup: Option<&'a mut Warmup>,
    /// Whether the warmup starts at 0.
    pub from_zero: Option<&'a mut bool>,
}

/// Any [`ScheduleRecipe`] that can be an entry of the run file.
pub trait AnySchedule: ScheduleRecipe {
    /// Returns a copy of this name with other [shared settings](ScheduleRecipe::shared).
    fn with_shared(&self, name: &'static str, set: &mut dyn FnMut(SharedSettings<'_>)) -> Schedule;

    /// Returns a copy of this name that is [shortened](ScheduleRecipe::shorten) for a run of `total` updates.
    fn shortened(&self, name: &'static str, total: u64) -> (Schedule, Vec<Shortened>);
}

impl<R: ScheduleRecipe + Clone + PartialEq + Serialize + 'static> AnySchedule for R {
    fn with_shared(&self, name: &'static str, set: &mut dyn FnMut(SharedSettings<'_>)) -> Schedule {
        let mut recipe = self.clone();
        set(recipe.shared());
        Schedule::new(name, recipe)
    }

    fn shortened(&self, name: &'static str, total: u64) -> (Schedule, Vec<Shortened>) {
        let mut recipe = self.clone();
        let shortened = recipe.shorten(total);
        (Schedule::new(name, recipe), shortened)
    }
}
