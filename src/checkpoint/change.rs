//! Settings that differ from those of the saved run.

use std::fmt;

use firebrick_datasets::{Fingerprint, counted};

use super::settings::Settings;

/// A setting that differs from that of the saved run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its path in the run file, or the trainer's name for it.
    pub field: String,
    /// The value in the checkpoint.
    pub saved: String,
    /// The value in this run.
    pub now: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` was {}, and is {}", self.field, self.saved, self.now)
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
