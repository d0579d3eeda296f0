//! A setting that is not what it was when a run was saved.

use std::fmt;

use super::trainer_state::Settings;

/// A setting that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its path in the run file, or the trainer's name for it.
    pub field: String,
    /// In the checkpoint.
    pub saved: String,
    /// In this run.
    pub now: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` was {}, and is {}", self.field, self.saved, self.now)
    }
}

impl Settings {
    /// What would make the run go on otherwise than it would have. The length may change: it moves only a
    /// schedule that is stretched over it.
    pub fn changes(&self, now: &Self) -> Vec<Change> {
        let fields = [
            ("seed", self.seed.to_string(), now.seed.to_string()),
            ("label smoothing", self.label_smoothing.to_string(), now.label_smoothing.to_string()),
            ("schedule", format!("{:?}", self.schedule), format!("{:?}", now.schedule)),
            ("global batch", format!("{:?}", self.global_batch), format!("{:?}", now.global_batch)),
            ("training data", samples(self.train_samples), samples(now.train_samples)),
        ];
        let changed = fields.into_iter().filter(|(_, saved, now)| saved != now);
        changed.map(|(field, saved, now)| Change { field: field.into(), saved, now }).collect()
    }
}

fn samples(number: usize) -> String {
    format!("{number} samples")
}
