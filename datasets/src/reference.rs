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
