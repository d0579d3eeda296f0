//! The length and shape of a warmup.

use serde::{Deserialize, Deserializer, Serialize};

/// The length of a warmup: `warmup: 50` updates in a run file, or `warmup: Ratio(0.06)` of the run.
///
/// There are two common formulas for the rate of update `t`, counted from 0, in a warmup of `w` updates. The default
/// here is `lr · (t + 1) / (w + 1)`, which wastes no update at 0. Transformers uses `lr · t / w`, as do schedules with
/// `from_zero: true`. Both reach `lr` at update `w`. With `lr: 1.0, warmup: 4`, the first five rates are:
///
/// | `from_zero` | 0 | 1 | 2 | 3 | 4 |
/// |---|---|---|---|---|---|
/// | `false`, the default | 0.2 | 0.4 | 0.6 | 0.8 | 1.0 |
/// | `true` | 0.0 | 0.25 | 0.5 | 0.75 | 1.0 |
///
/// DeepSpeed has its own formulas; see [`WarmupType`](super::WarmupType).
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::Warmup;
///
/// let schedule = Schedule::constant(1.0).warmup(4);
/// assert_eq!([0, 1, 4].map(|update| schedule.rate(update, 100)), [0.2, 0.4, 1.0]);
/// let schedule = schedule.from_zero();
/// assert_eq!([0, 1, 4].map(|update| schedule.rate(update, 100)), [0.0, 0.25, 1.0]);
/// assert_eq!(schedule.warmup(Warmup::Ratio(0.05)).warmup_updates(90), 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(into = "Written")]
pub enum Warmup {
    /// A number of updates.
    Updates(u64),
    /// A share of the run's updates, at least 0 and below 1, rounded up as in Transformers.
    Ratio(f64),
}

impl Warmup {
    /// Returns the number of warmup updates in a run of `total`.
    pub fn updates(self, total: u64) -> u64 {
        match self {
            Self::Updates(updates) => updates,
            Self::Ratio(ratio) => (total as f64 * ratio).ceil() as u64,
        }
    }

    /// Returns what to do in a run of unknown length, if the warmup depends on the length; see
    /// [`ScheduleRecipe::needs_length`](super::ScheduleRecipe::needs_length).
    pub fn needs_length(self) -> Option<&'static str> {
        matches!(self, Self::Ratio(_)).then_some("give its warmup in updates")
    }

    /// Returns the rate of an update: during the warmup to `lr` its own, and later what `decay` returns for the number
    /// of updates since the warmup and the number from the warmup to the end of the run.
    pub fn then(
        self,
        lr: f64,
        from_zero: bool,
        update: u64,
        total: u64,
        decay: impl FnOnce(u64, u64) -> f64,
    ) -> f64 {
        let warmup = self.updates(total);
        if update < warmup {
            let (risen, of) = risen(update, warmup, from_zero);
            return lr * risen / of;
        }
        decay(update - warmup, total.saturating_sub(warmup).max(1))
    }
}

impl Default for Warmup {
    /// No warmup.
    fn default() -> Self {
        Self::Updates(0)
    }
}

impl From<u64> for Warmup {
    fn from(updates: u64) -> Self {
        Self::Updates(updates)
    }
}

/// Returns the progress of update `update` in the warmup as a numerator and a denominator.
pub(super) fn risen(update: u64, warmup: u64, from_zero: bool) -> (f64, f64) {
    if from_zero { (update as f64, warmup as f64) } else { (update as f64 + 1.0, warmup as f64 + 1.0) }
}

/// The form in a run file, where a number means updates.
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

impl<'de> Deserialize<'de> for Warmup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[cfg(feature = "ron")]
        let written = crate::in_ron::deserialize(deserializer, |text| ron::from_str::<Written>(text));
        #[cfg(not(feature = "ron"))]
        let written = Written::deserialize(deserializer);
        written.map(Self::from)
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

#[cfg(all(test, feature = "ron"))]
mod tests {
    use proptest::prelude::*;
    use ron::extensions::Extensions;

    use super::*;

    /// Reads a warmup as in a run file.
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
        // As in Transformers, where the product is slightly above 7.
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
