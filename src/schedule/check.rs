//! Checks of a schedule's settings, and why a schedule is invalid.
//!
//! Each function returns an error that names the field.

use firebrick_datasets::counted;

use super::Warmup;

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

/// Why a [`Schedule`](super::Schedule) is invalid, either in general or in a run of this length.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A number is negative, not finite, or otherwise invalid for the field.
    #[error("the schedule's `{field}` must be {expected}, found {found}")]
    Number {
        /// The name of the field.
        field: &'static str,
        /// What the field must be.
        expected: &'static str,
        /// What the field is.
        found: f64,
    },
    /// A rate is below 0, or above the rate that bounds it.
    #[error(
        "the schedule's `{field}` must be at least 0 and at most `{bound}`, which is {most}, found {found}: lower it, or raise `{bound}`"
    )]
    Above {
        /// The name of the field.
        field: &'static str,
        /// What the field is.
        found: f64,
        /// The name of the highest rate.
        bound: &'static str,
        /// The highest rate.
        most: f64,
    },
    /// A count is 0 but must be at least 1.
    #[error("the schedule's `{field}` must be at least 1, found 0")]
    Zero {
        /// The name of the field.
        field: &'static str,
    },
    /// The warmup does not end within the run.
    #[error(
        "the schedule warms up for {}, but the run has {total}: shorten the warmup, or train for longer",
        counted(*warmup, "update")
    )]
    Warmup {
        /// The field that sets the length of the warmup.
        field: &'static str,
        /// Updates of warmup.
        warmup: u64,
        /// Updates of the run.
        total: u64,
    },
    /// Warmup, stable phase and decay do not end within the run.
    #[error(
        "the schedule's warmup, stable rate and decay take {}, but the run has {total}: shorten `{field}`, or train for longer",
        counted(*phases, "update")
    )]
    Phases {
        /// The field to shorten.
        field: &'static str,
        /// Updates of all three phases.
        phases: u64,
        /// Updates of the run.
        total: u64,
    },
    /// The schedule's own length is not longer than its warmup.
    #[error(
        "the schedule's `total` must be above its warmup, which is {}, found {total}: raise it, leave it out to have the run's, or shorten the warmup",
        counted(*warmup, "update")
    )]
    Total {
        /// Updates of warmup.
        warmup: u64,
        /// The length given with the schedule.
        total: u64,
    },
    /// The schedule is stretched over a run of unknown length.
    #[error(
        "{schedule} is stretched over the run, whose number of updates is not known: give the run a length, or {instead}"
    )]
    NoEnd {
        /// The name of the schedule.
        schedule: &'static str,
        /// A schedule that needs no length.
        instead: &'static str,
    },
    /// Burn refuses the configuration of its scheduler. No run file has one.
    #[error("Burn's scheduler cannot be used: {reason}")]
    Burn {
        /// Burn's reason.
        reason: String,
    },
}

impl ScheduleError {
    /// Returns the invalid field, by its name in a run file.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Number { field, .. }
            | Self::Above { field, .. }
            | Self::Zero { field }
            | Self::Warmup { field, .. }
            | Self::Phases { field, .. } => field,
            Self::Total { .. } | Self::NoEnd { .. } => "total",
            Self::Burn { .. } => "scheduler",
        }
    }

    /// Returns what the field of a run file must be, and what it is.
    pub fn expected_and_found(&self) -> (String, String) {
        match self {
            Self::Number { expected, found, .. } => ((*expected).into(), found.to_string()),
            Self::Above { found, bound, most, .. } => {
                (format!("at least 0 and at most `schedule.{bound}`, which is {most}"), found.to_string())
            }
            Self::Zero { .. } => ("at least 1".into(), "0".into()),
            Self::Warmup { warmup, total, .. } => {
                (format!("below `steps`, which is {total}"), warmup.to_string())
            }
            Self::Phases { phases, total, .. } => {
                let expected = format!(
                    "short enough that warmup, `stable` and `decay` together are at most `steps`, which is {total}"
                );
                (expected, format!("{} in all", counted(*phases, "update")))
            }
            Self::Total { warmup, total } => {
                (format!("above the updates of warmup, which are {warmup}"), total.to_string())
            }
            Self::NoEnd { instead, .. } => {
                (format!("known: give `steps` or `epochs`, or {instead}"), "nothing".into())
            }
            Self::Burn { reason } => ("one that Burn accepts".into(), reason.clone()),
        }
    }
}

#[cfg(all(test, feature = "ron"))]
mod tests {
    use crate::schedule::tests::{ALL, read};

    #[test]
    fn what_cannot_be_is_refused_by_its_field() {
        for (text, field, said) in [
            ("Constant(lr: 0)", "lr", "finite and above 0, found 0"),
            ("Cosine(lr: -1.0)", "lr", "found -1"),
            ("Cosine(lr: inf)", "lr", "found inf"),
            ("Linear(lr: NaN)", "lr", "found NaN"),
            (
                "Linear(lr: 1, min_lr: 2)",
                "min_lr",
                "at most `lr`, which is 1, found 2: lower it, or raise `lr`",
            ),
            ("Polynomial(lr: 1, min_lr: -0.1)", "min_lr", "at least 0"),
            ("CosineRestarts(lr: 1, min_lr: NaN)", "min_lr", "found NaN"),
            ("CosineRestarts(lr: 1, cycles: 0)", "cycles", "at least 1, found 0"),
            ("Polynomial(lr: 1, power: 0)", "power", "finite and above 0"),
            ("InverseSqrt(lr: 1, timescale: 0)", "timescale", "at least 1"),
            ("Constant(lr: 1, warmup: Ratio(1.0))", "warmup", "a Ratio of at least 0 and below 1, found 1"),
            ("InverseSqrt(lr: 1, warmup: Ratio(-0.1))", "warmup", "found -0.1"),
            ("WarmupLr(lr: 1, warmup: Ratio(NaN))", "warmup", "found NaN"),
            (
                "Constant(lr: 1, warmup: 100)",
                "warmup",
                "for 100 updates, but the run has 100: shorten the warmup",
            ),
            ("Cosine(lr: 1, warmup: Ratio(0.999))", "warmup", "train for longer"),
            ("WarmupLr(lr: 1)", "warmup", "for 1000 updates"),
            ("WarmupLr(lr: 1, min_lr: 2, warmup: 9)", "min_lr", "found 2"),
            ("WarmupDecayLr(lr: 1, warmup: 9, min_lr: -1)", "min_lr", "found -1"),
            (
                "WarmupDecayLr(lr: 1, warmup: 9, total: 9)",
                "total",
                "above its warmup, which is 9 updates, found 9: raise it",
            ),
            ("WarmupCosineLr(lr: 1, warmup: 9, total: 3)", "total", "found 3"),
            ("WarmupCosineLr(lr: 1, warmup: 9, cos_min_ratio: 1.5)", "cos_min_ratio", "at most 1, found 1.5"),
            ("WarmupCosineLr(lr: 1, warmup: 9, warmup_min_ratio: -1)", "warmup_min_ratio", "at least 0"),
            ("Wsd(lr: 1, decay: 0)", "decay", "at least 1"),
            (
                "Wsd(lr: 1, decay: 91, warmup: 10)",
                "decay",
                "take 101 updates, but the run has 100: shorten `decay`",
            ),
            ("Wsd(lr: 1, decay: 10, stable: 91)", "stable", "shorten `stable`"),
            ("OneCycle(min_lr: 2, lr: 1)", "min_lr", "at most `lr`"),
            ("OneCycle(min_lr: 0, lr: 1)", "first_step_size", "for 2000 updates, but the run has 100"),
            ("OneCycle(min_lr: 0, lr: 1, first_step_size: 0)", "first_step_size", "at least 1"),
            (
                "OneCycle(min_lr: 0, lr: 1, first_step_size: 9, decay_lr_rate: -1)",
                "decay_lr_rate",
                "at least 0",
            ),
            ("LrRangeTest(step_size: 0)", "step_size", "at least 1"),
            ("LrRangeTest(step_rate: 0)", "step_rate", "above 0"),
            ("LrRangeTest(min_lr: inf)", "min_lr", "finite"),
        ] {
            let error = read(text).unwrap().check(Some(100)).unwrap_err();
            assert_eq!(error.field(), field, "{text}");
            assert!(error.to_string().contains(said), "{text}: {error}");
            let (expected, found) = error.expected_and_found();
            assert!(!expected.is_empty() && !found.is_empty());
        }
        for text in ALL {
            assert_eq!(read(text).unwrap().check(Some(100)), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_schedule_that_is_stretched_needs_a_length() {
        for (text, instead) in [
            ("Linear(lr: 1)", Some("InverseSqrt")),
            ("Cosine(lr: 1)", Some("InverseSqrt")),
            ("CosineRestarts(lr: 1)", Some("InverseSqrt")),
            ("Polynomial(lr: 1)", Some("InverseSqrt")),
            ("Wsd(lr: 1, decay: 9)", Some("`stable`")),
            ("Wsd(lr: 1, decay: 9, stable: 9)", None),
            ("Wsd(lr: 1, decay: 9, stable: 9, warmup: Ratio(0.1))", Some("in updates")),
            ("WarmupDecayLr(lr: 1)", Some("`total`")),
            ("WarmupDecayLr(lr: 1, total: 2000)", None),
            ("WarmupDecayLr(lr: 1, total: 1000)", Some("above its warmup")),
            ("WarmupCosineLr(lr: 1)", Some("`total`")),
            ("WarmupCosineLr(lr: 1, total: 2000, warmup: Ratio(0.1))", Some("in updates")),
            ("Constant(lr: 1, warmup: 9)", None),
            ("Constant(lr: 1, warmup: Ratio(0.1))", Some("in updates")),
            ("InverseSqrt(lr: 1, warmup: 9)", None),
            ("InverseSqrt(lr: 1, warmup: Ratio(0.1))", Some("in updates")),
            ("WarmupLr(lr: 1)", None),
            ("WarmupLr(lr: 1, warmup: Ratio(0.1))", Some("in updates")),
            ("OneCycle(min_lr: 0, lr: 1)", None),
            ("LrRangeTest()", None),
        ] {
            let checked = read(text).unwrap().check(None);
            match (checked, instead) {
                (Ok(()), None) => {}
                (Err(error), Some(instead)) => {
                    assert!(error.to_string().contains(instead), "{text}: {error}")
                }
                (checked, _) => panic!("{text}: {checked:?}"),
            }
        }
    }

    #[test]
    fn a_run_file_is_told_what_it_must_have_instead() {
        for (text, expected, found) in [
            ("Cosine(lr: -1.0)", "finite and above 0", "-1"),
            (
                "Linear(lr: 1e-3, min_lr: 1e-2)",
                "at least 0 and at most `schedule.lr`, which is 0.001",
                "0.01",
            ),
            ("Cosine(lr: 1, warmup: 4)", "below `steps`, which is 4", "4"),
            ("Cosine(lr: 1, warmup: Ratio(1.5))", "a Ratio of at least 0 and below 1", "1.5"),
            ("OneCycle(min_lr: 0, lr: 1)", "below `steps`, which is 4", "2000"),
            (
                "Wsd(lr: 1, decay: 9)",
                "short enough that warmup, `stable` and `decay` together are at most `steps`, which is 4",
                "9 updates in all",
            ),
            ("WarmupDecayLr(lr: 1, warmup: 2, total: 2)", "above the updates of warmup, which are 2", "2"),
        ] {
            let error = read(text).unwrap().check(Some(4)).unwrap_err();
            assert_eq!(error.expected_and_found(), (expected.into(), found.into()), "{text}");
        }
    }
}
