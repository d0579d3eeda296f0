//! What a kind of schedule says about itself, and how it is shortened for a short run.

use std::fmt::Debug;

use serde::Serialize;

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
/// // A run file of a program with these has `schedule: Halved(lr: 1e-3, updates: 100)`.
/// let schedules = Schedules::built_in().with::<Halved>("Halved", Schedule::named);
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

/// A setting that was shortened so that the schedule ends within the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortened {
    /// The name of the setting.
    pub setting: &'static str,
    /// Its updates before.
    pub from: u64,
    /// Its updates now.
    pub to: u64,
}

/// Shortens the warmup of this setting to a tenth of a run of `total` updates, if it does not end within the run. It has
/// `from` updates.
pub(super) fn shorten_warmup(
    setting: &'static str,
    warmup: Option<&mut Warmup>,
    from: u64,
    total: u64,
) -> Option<Shortened> {
    let warmup = warmup.filter(|_| from >= total)?;
    let to = total / 10;
    *warmup = Warmup::Updates(to);
    Some(Shortened { setting, from, to })
}

#[cfg(test)]
mod tests {
    use crate::Schedule;
    use crate::schedule::{OneCycle, Shortened, WarmupLr, Wsd};

    fn shortened(schedule: &Schedule, total: u64) -> Vec<(&'static str, u64, u64)> {
        let (schedule, changes) = schedule.shortened(total);
        assert_eq!(schedule.check(Some(total)), Ok(()), "{schedule:?}");
        changes.iter().map(|Shortened { setting, from, to }| (*setting, *from, *to)).collect()
    }

    #[test]
    fn a_warmup_that_ends_within_the_run_stays() {
        let schedule = Schedule::cosine(1.0).warmup(99);
        assert_eq!(schedule.shortened(100), (schedule.clone(), vec![]));
        assert_eq!(shortened(&schedule, 99), [("warmup", 99, 9)]);
        assert_eq!(shortened(&schedule, 3), [("warmup", 99, 0)]);
        assert_eq!(shortened(&Schedule::new("WarmupLr", WarmupLr::new(1.0)), 50), [("warmup", 1000, 5)]);
    }

    #[test]
    fn each_phase_that_is_too_long_is_shortened() {
        let wsd = |stable| Schedule::new("Wsd", Wsd { stable, ..Wsd::new(1.0, 30) }).warmup(20);
        assert_eq!(shortened(&wsd(None), 50), []);
        assert_eq!(shortened(&wsd(None), 40), [("decay", 30, 8)]);
        assert_eq!(shortened(&wsd(Some(100)), 60), [("stable", 100, 10)]);
        assert_eq!(shortened(&wsd(Some(100)), 10), [("warmup", 20, 1), ("decay", 30, 2), ("stable", 100, 7)]);
        let cycle = |second_step_size| {
            Schedule::new("OneCycle", OneCycle { second_step_size, ..OneCycle::new(0.0, 1.0) })
        };
        assert_eq!(shortened(&cycle(None), 9), [("first_step_size", 2000, 4)]);
        let both = [("first_step_size", 2000, 4), ("second_step_size", 30, 4)];
        assert_eq!(shortened(&cycle(Some(30)), 9), both);
    }
}
