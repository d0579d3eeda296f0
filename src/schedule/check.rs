//! Checks whether a schedule is valid, and fits a run.

use super::{Schedule, ScheduleError, Warmup};

impl Schedule {
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
        let Some(total) = total else { return self.check_endless() };
        let warmup = self.warmup_updates(total);
        if warmup >= total {
            return Err(ScheduleError::Warmup { field: self.warmup_field(), warmup, total });
        }
        match self {
            Self::Wsd(wsd) => wsd.check_phases(total),
            Self::WarmupDecayLr(schedule) => own_total(schedule.total, warmup),
            Self::WarmupCosineLr(schedule) => own_total(schedule.total, warmup),
            Self::LrRangeTest(test) => test.check_last(total),
            _ => Ok(()),
        }
    }

    /// Checks what does not depend on the length of the run.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check) that concern single fields.
    pub fn check_numbers(&self) -> Result<(), ScheduleError> {
        match *self {
            Self::Constant { lr, warmup, .. } => {
                above_zero("lr", lr)?;
                share(warmup)
            }
            Self::Linear { lr, min_lr, warmup, .. } | Self::Cosine { lr, min_lr, warmup, .. } => {
                above_zero("lr", lr)?;
                at_most("min_lr", min_lr, "lr", lr)?;
                share(warmup)
            }
            Self::CosineRestarts { lr, min_lr, cycles, warmup, .. } => {
                above_zero("lr", lr)?;
                at_most("min_lr", min_lr, "lr", lr)?;
                not_zero("cycles", cycles)?;
                share(warmup)
            }
            Self::Polynomial { lr, min_lr, power, warmup, .. } => {
                above_zero("lr", lr)?;
                at_most("min_lr", min_lr, "lr", lr)?;
                above_zero("power", power)?;
                share(warmup)
            }
            Self::InverseSqrt { lr, timescale, warmup, .. } => {
                above_zero("lr", lr)?;
                not_zero("timescale", timescale.unwrap_or(1))?;
                share(warmup)
            }
            Self::Wsd(schedule) => schedule.check_numbers(),
            Self::WarmupLr(schedule) => schedule.check_numbers(),
            Self::WarmupDecayLr(schedule) => schedule.check_numbers(),
            Self::WarmupCosineLr(schedule) => schedule.check_numbers(),
            Self::OneCycle(schedule) => schedule.check_numbers(),
            Self::LrRangeTest(test) => test.check_numbers(),
        }
    }

    /// Checks that no rate depends on the length of the run.
    fn check_endless(&self) -> Result<(), ScheduleError> {
        let lasting = Some("take one without an end, such as InverseSqrt");
        let total = |total: Option<u64>| total.is_none().then_some("give its `total`");
        let (schedule, warmup, instead) = match *self {
            Self::Constant { warmup, .. } => ("Constant", warmup, None),
            Self::Linear { warmup, .. } => ("Linear", warmup, lasting),
            Self::Cosine { warmup, .. } => ("Cosine", warmup, lasting),
            Self::CosineRestarts { warmup, .. } => ("CosineRestarts", warmup, lasting),
            Self::Polynomial { warmup, .. } => ("Polynomial", warmup, lasting),
            Self::InverseSqrt { warmup, .. } => ("InverseSqrt", warmup, None),
            Self::Wsd(wsd) => ("Wsd", wsd.warmup, wsd.stable.is_none().then_some("give its `stable`")),
            Self::WarmupLr(own) => ("WarmupLr", own.warmup, None),
            Self::WarmupDecayLr(own) => ("WarmupDecayLr", own.warmup, total(own.total)),
            Self::WarmupCosineLr(own) => ("WarmupCosineLr", own.warmup, total(own.total)),
            Self::OneCycle(_) | Self::LrRangeTest(_) => return Ok(()),
        };
        let share = matches!(warmup, Warmup::Ratio(_)).then_some("give its warmup in updates");
        match (instead.or(share), self) {
            (Some(instead), _) => Err(ScheduleError::NoEnd { schedule, instead }),
            (None, Self::WarmupDecayLr(own)) => own_total(own.total, self.warmup_updates(0)),
            (None, Self::WarmupCosineLr(own)) => own_total(own.total, self.warmup_updates(0)),
            (None, _) => Ok(()),
        }
    }

    fn warmup_field(&self) -> &'static str {
        if matches!(self, Self::OneCycle(_)) { "first_step_size" } else { "warmup" }
    }
}

/// Checks that a number, such as a highest rate, is above 0.
pub(super) fn above_zero(field: &'static str, found: f64) -> Result<(), ScheduleError> {
    match found > 0.0 && found.is_finite() {
        true => Ok(()),
        false => Err(ScheduleError::Number { field, expected: "finite and above 0", found }),
    }
}

/// Checks that a rate is at most the highest one.
pub(super) fn at_most(
    field: &'static str,
    found: f64,
    bound: &'static str,
    most: f64,
) -> Result<(), ScheduleError> {
    match (0.0..=most).contains(&found) {
        true => Ok(()),
        false => Err(ScheduleError::Above { field, found, bound, most }),
    }
}

/// Checks that a share of the highest rate is between 0 and 1.
pub(super) fn ratio(field: &'static str, found: f64) -> Result<(), ScheduleError> {
    match (0.0..=1.0).contains(&found) {
        true => Ok(()),
        false => Err(ScheduleError::Number { field, expected: "at least 0 and at most 1", found }),
    }
}

/// Checks that a count used as a divisor is not 0.
pub(super) fn not_zero(field: &'static str, found: u64) -> Result<(), ScheduleError> {
    if found == 0 { Err(ScheduleError::Zero { field }) } else { Ok(()) }
}

/// Checks that a warmup given as a share of the run is less than the whole run.
pub(super) fn share(warmup: Warmup) -> Result<(), ScheduleError> {
    match warmup {
        Warmup::Ratio(found) if !(0.0..1.0).contains(&found) => Err(ScheduleError::Number {
            field: "warmup",
            expected: "a Ratio of at least 0 and below 1",
            found,
        }),
        _ => Ok(()),
    }
}

/// Checks that the schedule's own length is above its warmup.
fn own_total(total: Option<u64>, warmup: u64) -> Result<(), ScheduleError> {
    match total {
        Some(total) if total <= warmup => Err(ScheduleError::Total { warmup, total }),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
