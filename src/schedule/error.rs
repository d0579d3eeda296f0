//! Why a schedule is invalid.

use firebrick_datasets::counted;

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
    /// A checkpoint cannot hold the schedule.
    #[error(
        "the schedule `{schedule}` cannot be saved in a checkpoint, which is JSON: {reason}; give it settings that JSON has, such as finite numbers, or train without an output folder"
    )]
    NotSaved {
        /// The name of the schedule.
        schedule: &'static str,
        /// What is lost.
        reason: String,
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
            Self::NotSaved { .. } => "schedule",
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
            Self::NotSaved { reason, .. } => ("one that a checkpoint can hold".into(), reason.clone()),
            Self::Burn { reason } => ("one that Burn accepts".into(), reason.clone()),
        }
    }
}
