//! How long a schedule rises at its start, and how.

use serde::{Deserialize, Serialize};

/// How long a schedule rises at its start: `warmup: 50` updates in a run file, or `warmup: Ratio(0.06)` of the run.
///
/// Two formulas are in use for the rate of update `t`, counted from 0, of `w` such updates. `lr · (t + 1) / (w + 1)`
/// wastes no update at 0, and is ours; `lr · t / w` is that of Transformers, and of schedules with
/// `from_zero: true`. Both are at `lr` from update `w` on. Of `lr: 1.0, warmup: 4`, the first five rates are:
///
/// | `from_zero` | 0 | 1 | 2 | 3 | 4 |
/// |---|---|---|---|---|---|
/// | `false`, the default | 0.2 | 0.4 | 0.6 | 0.8 | 1.0 |
/// | `true` | 0.0 | 0.25 | 0.5 | 0.75 | 1.0 |
///
/// DeepSpeed's own is that of [`WarmupType`](super::WarmupType).
///
/// ```
/// use firebrick::{Schedule, schedule::Warmup};
///
/// let schedule = Schedule::constant(1.0).warmup(4);
/// assert_eq!([0, 1, 4].map(|update| schedule.rate(update, 100)), [0.2, 0.4, 1.0]);
/// let schedule = schedule.from_zero();
/// assert_eq!([0, 1, 4].map(|update| schedule.rate(update, 100)), [0.0, 0.25, 1.0]);
/// assert_eq!(schedule.warmup(Warmup::Ratio(0.05)).warmup_updates(90), 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub enum Warmup {
    /// So many updates.
    Updates(u64),
    /// This share of the run's updates, at least 0 and below 1, rounded up as Transformers rounds it.
    Ratio(f64),
}

impl Warmup {
    /// How many updates of a run of `total`.
    pub fn updates(self, total: u64) -> u64 {
        match self {
            Self::Updates(updates) => updates,
            Self::Ratio(ratio) => (total as f64 * ratio).ceil() as u64,
        }
    }
}

impl Default for Warmup {
    /// None.
    fn default() -> Self {
        Self::Updates(0)
    }
}

impl From<u64> for Warmup {
    fn from(updates: u64) -> Self {
        Self::Updates(updates)
    }
}

/// How much of the way up update `update` is, and of how much.
pub(super) fn risen(update: u64, warmup: u64, from_zero: bool) -> (f64, f64) {
    match from_zero {
        false => (update as f64 + 1.0, warmup as f64 + 1.0),
        true => (update as f64, warmup as f64),
    }
}

/// As in a run file: a number stands for itself.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a warmup, as a number of updates such as 50, or a share of the run such as Ratio(0.06)"
)]
enum Written {
    Updates(u64),
    Named(Named),
}

#[derive(Serialize, Deserialize)]
enum Named {
    Ratio(f64),
}

impl From<Written> for Warmup {
    fn from(written: Written) -> Self {
        match written {
            Written::Updates(updates) => Self::Updates(updates),
            Written::Named(Named::Ratio(ratio)) => Self::Ratio(ratio),
        }
    }
}

impl From<Warmup> for Written {
    fn from(warmup: Warmup) -> Self {
        match warmup {
            Warmup::Updates(updates) => Self::Updates(updates),
            Warmup::Ratio(ratio) => Self::Named(Named::Ratio(ratio)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ron::extensions::Extensions;

    use super::*;

    /// The dialect of run files.
    fn read(text: &str) -> Result<Warmup, String> {
        let extensions = Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES;
        let options = ron::Options::default().with_default_extension(extensions);
        options.from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_number_is_updates_and_a_share_is_named() {
        assert_eq!(read("50"), Ok(Warmup::Updates(50)));
        assert_eq!(read("Ratio(0.06)"), Ok(Warmup::Ratio(0.06)));
        assert_eq!(read("Ratio( 0 , )"), Ok(Warmup::Ratio(0.0)));
        assert_eq!(ron::to_string(&Warmup::Updates(50)).unwrap(), "50");
        assert_eq!(ron::to_string(&Warmup::Ratio(0.06)).unwrap(), "Ratio(0.06)");
        assert_eq!(serde_json::to_string(&Warmup::Ratio(0.06)).unwrap(), r#"{"Ratio":0.06}"#);
        for wrong in ["0.06", "-1", "Share(0.06)", "Ratio", "Ratio(a)", "\"50\"", "None", "[50]"] {
            let said = read(wrong).unwrap_err();
            assert!(
                said.contains("such as 50, or a share of the run such as Ratio(0.06)"),
                "{wrong}: {said}"
            );
        }
    }

    #[test]
    fn a_share_is_rounded_up() {
        let updates = |ratio, total| Warmup::Ratio(ratio).updates(total);
        assert_eq!([updates(0.06, 100), updates(0.06, 101), updates(0.0, 100)], [6, 7, 0]);
        // As Transformers has it, whose product is a little above 7.
        assert_eq!(updates(0.07, 100), 8);
        assert_eq!(updates(0.5, u64::MAX), 1 << 63);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(updates in any::<u64>(), ratio in any::<f64>()) {
            for warmup in [Warmup::Updates(updates), Warmup::Ratio(ratio)] {
                prop_assert_eq!(read(&ron::to_string(&warmup).unwrap()), Ok(warmup));
                prop_assert_eq!(ron::from_str(&ron::to_string(&warmup).unwrap()), Ok(warmup));
            }
        }
    }
}
