//! Activation recompute in a run file.

use firebrick_strategies::Recompute;
use serde::{Deserialize, Serialize};

/// What is recomputed in the backward pass: one of `Recompute(every: 1)`, `Recompute(paths: ["blocks.0"])`,
/// `Recompute(within: 500000000)` and `Recompute(elementwise: true)`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecomputeConfig {
    /// Recomputes every n-th block, beginning with the first; 1 recomputes all blocks.
    #[serde(default)]
    pub every: Option<usize>,
    /// Recomputes the blocks at these paths; `*` stands for any characters.
    #[serde(default)]
    pub paths: Option<Vec<String>>,
    /// Recomputes as few blocks as keep the activations of all blocks within this many bytes.
    #[serde(default)]
    pub within: Option<usize>,
    /// Recomputes the operations between matrix products, with Burn's own checkpointing.
    #[serde(default)]
    pub elementwise: bool,
    /// Whether the inputs of recomputed blocks are kept in host memory. Default: no.
    #[serde(default)]
    pub offloaded: bool,
}

impl RecomputeConfig {
    /// Recomputes every block: `Recompute(every: 1)`.
    pub(crate) fn every_block() -> Self {
        Self { every: Some(1), ..Self::default() }
    }

    /// Returns how many ways of choosing are given. Validation ensures that it is one.
    pub(super) fn choices(&self) -> usize {
        [self.every.is_some(), self.paths.is_some(), self.within.is_some(), self.elementwise]
            .into_iter()
            .filter(|is_given| *is_given)
            .count()
    }

    pub(super) fn recipe(&self) -> Recompute {
        let recipe = match (self.every, &self.paths, self.within) {
            (Some(count), ..) => Recompute::every(count),
            (_, Some(paths), _) => Recompute::paths(paths.clone()),
            (.., Some(bytes)) => Recompute::within(bytes),
            _ => Recompute::elementwise(),
        };
        if self.offloaded { recipe.offloaded() } else { recipe }
    }
}
