//! The settings that a resumed run is compared by.

use firebrick_datasets::Amount;
use serde::{Deserialize, Serialize};

use crate::Schedule;
use crate::data::Fingerprints;

/// The settings known to the trainer that affect the run's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub seed: u64,
    #[serde(default)]
    pub label_smoothing: f64,
    #[cfg_attr(feature = "ron", serde(deserialize_with = "super::older_schedule::deserialize"))]
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
