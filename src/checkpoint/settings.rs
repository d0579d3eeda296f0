//! The settings that a resumed run is compared by, and those that differ from the saved run's.

use firebrick_datasets::{Amount, Fingerprint, counted};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::data::Fingerprints;
use crate::{Change, Schedule};

/// The settings known to the trainer that affect the run's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub seed: u64,
    #[serde(default)]
    pub label_smoothing: f64,
    #[cfg_attr(feature = "ron", serde(deserialize_with = "older_schedule::deserialize"))]
    pub schedule: RecordedSchedule,
    /// Whether the rates come from a function instead, which cannot be compared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rates_by_function: bool,
    pub total_updates: u64,
    /// The size of an update's batch, over all ranks.
    pub global_batch: GlobalBatch,
    /// The number of samples in the first epoch.
    pub train_samples: usize,
    /// The data's fingerprints. Older checkpoints have none.
    #[serde(default)]
    pub data: Fingerprints,
}

/// A schedule in a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum RecordedSchedule {
    /// That of this run, or one of Firebrick's.
    Known(Schedule),
    /// One of a program's own, as it was written. Its type is not needed to compare it.
    Own(Value),
}

impl<'de> Deserialize<'de> for RecordedSchedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Value::deserialize(deserializer)?;
        Ok(Schedule::deserialize(&written).map_or(Self::Own(written), Self::Known))
    }
}

/// The size of an update's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GlobalBatch {
    Samples(usize),
    Tokens(usize),
}

impl From<Amount> for GlobalBatch {
    fn from(amount: Amount) -> Self {
        match amount {
            Amount::Samples(samples) => Self::Samples(samples),
            Amount::Tokens(tokens) => Self::Tokens(tokens),
        }
    }
}

impl Settings {
    /// The changes that would make the run continue differently. The length may change, since it only affects a
    /// schedule that is stretched over it.
    pub fn changes(&self, now: &Self) -> Vec<Change> {
        let fields = [
            ("seed", self.seed.to_string(), now.seed.to_string()),
            ("label smoothing", self.label_smoothing.to_string(), now.label_smoothing.to_string()),
            ("schedule", self.described_schedule(now), now.described_schedule(self)),
            ("global batch", format!("{:?}", self.global_batch), format!("{:?}", now.global_batch)),
        ];
        let fields = fields.into_iter().chain(self.data_changes(now));
        let changed = fields.filter(|(_, saved, now)| saved != now);
        changed.map(|(field, saved, now)| Change { field: field.into(), saved, now }).collect()
    }

    /// Describes the schedule where it is compared with another one.
    fn described_schedule(&self, other: &Self) -> String {
        match (&self.schedule, &other.schedule) {
            _ if self.rates_by_function => "a function".into(),
            (RecordedSchedule::Known(schedule), RecordedSchedule::Known(_)) => format!("{schedule:?}"),
            // As it is read again, with its fields in the order of values.
            (schedule, _) => {
                let written = serde_json::to_string(schedule).unwrap_or_default();
                serde_json::from_str(&written).unwrap_or(Value::Null).to_string()
            }
        }
    }

    /// The changes of the data. Data without a fingerprint, as in an older checkpoint, is not compared.
    fn data_changes(&self, now: &Self) -> impl Iterator<Item = (&'static str, String, String)> {
        let samples = |settings: &Self| counted(settings.train_samples, "sample").to_string();
        let train = match (self.data.train, now.data.train) {
            (Some(saved), Some(known)) => {
                let of = |settings, print| format!("{} with the fingerprint {print}", samples(settings));
                (TRAINING_DATA, of(self, saved), of(now, known))
            }
            _ => (TRAINING_DATA, samples(self), samples(now)),
        };
        let of = |print: Fingerprint| format!("data with the fingerprint {print}");
        let valid = self.data.valid.zip(now.data.valid);
        let valid = valid.map(|(saved, now)| (VALIDATION_DATA, of(saved), of(now)));
        std::iter::once(train).chain(valid)
    }

    /// The changes that make it impossible to continue.
    pub fn impossible_changes(&self, now: &Self) -> Vec<Change> {
        let tokenizers = self.data.tokenizer.zip(now.data.tokenizer).filter(|(saved, now)| saved != now);
        let of = |print: Fingerprint| format!("one with the fingerprint {print}");
        let change = tokenizers.map(|(saved, now)| Change {
            field: "tokenizer".into(),
            saved: of(saved),
            now: of(now),
        });
        change.into_iter().collect()
    }
}

/// The trainer's names for settings that no run file contains.
pub(super) const TRAINING_DATA: &str = "training data";
pub(super) const VALIDATION_DATA: &str = "validation data";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{ScheduleError, ScheduleRecipe};

    /// A schedule of a program's own, with numbers that JSON lacks.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Until {
        until: f32,
        floor: Option<f64>,
    }

    impl ScheduleRecipe for Until {
        fn rate(&self, update: u64, _: u64) -> f64 {
            if (update as f32) < self.until { 1.0 } else { self.floor.unwrap_or(0.0) }
        }

        fn peak(&self) -> f64 {
            1.0
        }

        fn check_numbers(&self) -> Result<(), ScheduleError> {
            Ok(())
        }
    }

    fn settings(schedule: Schedule) -> Settings {
        Settings {
            seed: 0,
            label_smoothing: 0.0,
            schedule: RecordedSchedule::Known(schedule),
            rates_by_function: false,
            total_updates: 1,
            global_batch: GlobalBatch::Samples(1),
            train_samples: 1,
            data: Fingerprints::default(),
        }
    }

    #[test]
    fn schedules_are_compared_though_their_types_are_unknown() {
        let until = |until, floor| settings(Schedule::new("Until", Until { until, floor }));
        let saved =
            |settings: &Settings| serde_json::from_str(&serde_json::to_string(settings).unwrap()).unwrap();
        let cosine = settings(Schedule::cosine(0.1 + 0.2).warmup(3));
        let all = [until(9.0, None), until(f32::INFINITY, Some(0.1)), until(1.0 / 3.0, Some(0.1)), cosine];
        for (of_saved, settings) in all.iter().enumerate() {
            let saved: Settings = saved(settings);
            for (of_now, now) in all.iter().enumerate() {
                let changes = saved.changes(now);
                assert_eq!(changes.is_empty(), of_saved == of_now, "{changes:?}");
                assert!(changes.iter().all(|change| change.field == "schedule"), "{changes:?}");
            }
        }
    }
}

/// The schedule in `trainer.ron`, where checkpoints of formats 1 and 2 have the state.
///
/// It is written as in a run file: `Cosine(lr: 1e-3, ..)`. The other values are in RON without extensions.
#[cfg(feature = "ron")]
mod older_schedule {
    use ron::error::{SpannedError, SpannedResult};
    use ron::extensions::Extensions;
    use serde::Deserializer;

    use super::RecordedSchedule;
    use crate::in_ron;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<RecordedSchedule, D::Error> {
        in_ron::deserialize(deserializer, parse)
    }

    fn parse(text: &str) -> SpannedResult<RecordedSchedule> {
        let options = ron::Options::default().with_default_extension(Extensions::UNWRAP_VARIANT_NEWTYPES);
        // The oldest have the settings of some schedules in a second pair of parentheses: `Wsd((lr: 1e-3, ..))`.
        match options.from_str(text).or_else(|error| ron::from_str(text).map_err(|_| error)) {
            Ok(schedule) => Ok(RecordedSchedule::Known(schedule)),
            Err(SpannedError { code: ron::Error::NoSuchEnumVariant { .. }, .. }) => {
                Ok(RecordedSchedule::Own(text.into()))
            }
            Err(error) => Err(error),
        }
    }

    #[cfg(test)]
    mod tests {
        use serde::Deserialize;

        use super::*;
        use crate::Schedule;
        use crate::schedule::Wsd;

        #[derive(Debug, PartialEq, Deserialize)]
        struct Recorded {
            #[serde(deserialize_with = "deserialize")]
            schedule: RecordedSchedule,
            total_updates: u64,
        }

        #[test]
        fn schedules_of_older_checkpoints_are_read() {
            let cosine = Schedule::cosine(0.5).warmup(3);
            let wsd = Schedule::new("Wsd", Wsd::new(0.5, 4));
            for (written, schedule) in [
                (
                    "Cosine(\n    lr: 0.5,\n    min_lr: 0.0,\n    warmup: 3,\n    from_zero: false,\n)",
                    &cosine,
                ),
                ("Wsd(lr: 0.5, decay: 4)", &wsd),
                ("Wsd((lr: 0.5, decay: 4))", &wsd),
            ] {
                let text = format!("(schedule: {written}, total_updates: 9)");
                let schedule = RecordedSchedule::Known(schedule.clone());
                let recorded = Recorded { schedule, total_updates: 9 };
                assert_eq!(ron::from_str(&text), Ok(recorded));
            }
            let wrong = ron::from_str::<Recorded>("(schedule: Cosine(lrr: 0.5), total_updates: 9)");
            assert!(wrong.unwrap_err().to_string().contains("lrr"));
            let own: Recorded = ron::from_str("(schedule: Halved(lr: 0.5), total_updates: 9)").unwrap();
            assert_eq!(own.schedule, RecordedSchedule::Own("Halved(lr: 0.5)".into()));
        }
    }
}
