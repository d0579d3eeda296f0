//! Losses that compare a model with another one.

use serde::{Deserialize, Serialize};

/// The model that a loss compares the trained one with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Reference {
    /// The model that training starts from, with the adapters that it starts from.
    #[default]
    Frozen,
    /// The model without its adapters. With new adapters, this is also the one that training starts from.
    AdapterOff,
}

/// The samples of a batch about which its loss asks a reference model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// The model to ask.
    pub with: Reference,
    /// Each sample's id: a hash of its contents, the same wherever the sample stands.
    pub samples: Vec<u128>,
}

impl Compared {
    /// Returns what the answers about each sample are kept under: another reference gives other answers.
    ///
    /// ```
    /// use firebrick_datasets::{Compared, Reference};
    ///
    /// let keys = |with| Compared { with, samples: vec![3, 4] }.keys();
    /// assert_ne!(keys(Reference::Frozen), keys(Reference::AdapterOff));
    /// ```
    pub fn keys(&self) -> Vec<u128> {
        let key = |sample: &u128| match self.with {
            Reference::Frozen => *sample,
            Reference::AdapterOff => !sample,
        };
        self.samples.iter().map(key).collect()
    }
}
