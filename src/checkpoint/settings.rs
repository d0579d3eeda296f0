//! The settings that a resumed run is compared by, and those that differ from the saved run's.

use firebrick_datasets::{Amount, Fingerprint, counted};
use serde::{Deserialize, Serialize};

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
    pub schedule: Schedule,
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
            ("schedule", self.described_schedule(), now.described_schedule()),
            ("global batch", format!("{:?}", self.global_batch), format!("{:?}", now.global_batch)),
        ];
        let fields = fields.into_iter().chain(self.data_changes(now));
        let changed = fields.filter(|(_, saved, now)| saved != now);
        changed.map(|(field, saved, now)| Change { field: field.into(), saved, now }).collect()
    }

    fn described_schedule(&self) -> String {
        if self.rates_by_function { "a function".into() } else { format!("{:?}", self.schedule) }
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

/// The schedule in `trainer.ron`, where checkpoints of formats 1 and 2 have the state.
///
/// It is written as in a run file: `Cosine(lr: 1e-3, ..)`. The other values are in RON without extensions.
#[cfg(feature = "ron")]
mod older_schedule {
    use ron::error::SpannedResult;
    use ron::extensions::Extensions;
    use serde::Deserializer;

    use crate::{Schedule, in_ron};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Schedule, D::Error> {
        in_ron::deserialize(deserializer, parse)
    }

    fn parse(text: &str) -> SpannedResult<Schedule> {
        let options = ron::Options::default().with_default_extension(Extensions::UNWRAP_VARIANT_NEWTYPES);
        // The oldest have the settings of some schedules in a second pair of parentheses: `Wsd((lr: 1e-3, ..))`.
        options.from_str(text).or_else(|error| ron::from_str(text).map_err(|_| error))
    }

    #[cfg(test)]
    mod tests {
        use serde::Deserialize;

        use super::*;
        use crate::schedule::Wsd;

        #[derive(Debug, PartialEq, Deserialize)]
        struct Recorded {
            #[serde(deserialize_with = "deserialize")]
            schedule: Schedule,
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
                let recorded = Recorded { schedule: schedule.clone(), total_updates: 9 };
                assert_eq!(ron::from_str(&text), Ok(recorded));
            }
            let wrong = ron::from_str::<Recorded>("(schedule: Cosine(lrr: 0.5), total_updates: 9)");
            assert!(wrong.unwrap_err().to_string().contains("lrr"));
        }
    }
}
