//! Checks of a schedule's settings.
//!
//! Each function returns an error that names the field.

use super::{ScheduleError, Warmup};

/// What to do in a run of unknown length with a schedule that is stretched over the run.
pub const TAKE_ONE_WITHOUT_END: &str = "take one without an end, such as InverseSqrt";

/// Checks that a number, such as a highest rate, is above 0.
pub fn above_zero(field: &'static str, found: f64) -> Result<(), ScheduleError> {
    match found > 0.0 && found.is_finite() {
        true => Ok(()),
        false => Err(ScheduleError::Number { field, expected: "finite and above 0", found }),
    }
}

/// Checks that a rate is at most the highest one.
pub fn at_most(field: &'static str, found: f64, bound: &'static str, most: f64) -> Result<(), ScheduleError> {
    match (0.0..=most).contains(&found) {
        true => Ok(()),
        false => Err(ScheduleError::Above { field, found, bound, most }),
    }
}

/// Checks that a share of the highest rate is between 0 and 1.
pub fn ratio(field: &'static str, found: f64) -> Result<(), ScheduleError> {
    match (0.0..=1.0).contains(&found) {
        true => Ok(()),
        false => Err(ScheduleError::Number { field, expected: "at least 0 and at most 1", found }),
    }
}

/// Checks that a count used as a divisor is not 0.
pub fn not_zero(field: &'static str, found: u64) -> Result<(), ScheduleError> {
    if found == 0 { Err(ScheduleError::Zero { field }) } else { Ok(()) }
}

/// Checks that a warmup given as a share of the run is less than the whole run.
pub fn share(warmup: Warmup) -> Result<(), ScheduleError> {
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
pub(super) fn own_total(total: Option<u64>, warmup: u64) -> Result<(), ScheduleError> {
    match total {
        Some(total) if total <= warmup => Err(ScheduleError::Total { warmup, total }),
        _ => Ok(()),
    }
}

#[cfg(all(test, feature = "ron"))]
#[path = "check_tests.rs"]
mod tests;
