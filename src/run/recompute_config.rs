//! Activation recompute in a run file.

use firebrick_strategies::Recompute;
use serde::{Deserialize, Serialize};

/// What is recomputed: one of `Recompute(every: 1)`, `Recompute(paths: ["blocks.0"])`,
/// `Recompute(within: 500000000)` and `Recompute(elementwise: true)`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecomputeConfig {
    /// The first block of every so many: 1 for all.
    #[serde(default)]
    pub every: Option<usize>,
    /// The blocks at these paths, in which `*` stands for any characters.
    #[serde(default)]
    pub paths: Option<Vec<String>>,
    /// As few blocks as let all hold at most so many bytes.
    #[serde(default)]
    pub within: Option<usize>,
    /// The operations between matrix products, by Burn's own scheme.
    #[serde(default)]
    pub elementwise: bool,
    /// Whether the inputs of recomputed blocks wait in the host's memory. Default: no.
    #[serde(default)]
    pub offloaded: bool,
}

impl RecomputeConfig {
    /// Each block is run again: `Recompute(every: 1)`.
    pub(crate) fn every_block() -> Self {
        Self { every: Some(1), ..Self::default() }
    }

    /// How many ways of choosing are given; that it is one, has been checked.
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
