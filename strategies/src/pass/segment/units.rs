//! The parameters that are handled block by block, and how.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::Tensor;

use super::offloaded::{OffloadedParam, OffloadedParams};
use crate::moving::BUCKET_BYTES;
use crate::{Paths, Sharding, each_param};

/// Parameters, flat and including the padding of gathered ones.
pub(super) type Values = HashMap<ParamId, Tensor<1>>;

/// The block of each parameter.
#[derive(Clone, Debug, Default)]
pub struct Units {
    unit_of: HashMap<ParamId, usize>,
    paths: Vec<String>,
}

impl Units {
    /// Creates units from the modules at these paths. A parameter that also appears outside its block belongs to no
    /// unit.
    pub fn of(paths: &Paths, blocks: &[String]) -> Self {
        let block_of = |path: &str| {
            blocks
                .iter()
                .position(|block| path.strip_prefix(block.as_str()).is_some_and(|rest| rest.starts_with('.')))
        };
        let mut unit_of: HashMap<ParamId, Option<usize>> = HashMap::new();
        for place in paths.places() {
            let block = block_of(&place.path);
            let first = *unit_of.entry(place.id).or_insert(block);
            if first != block {
                unit_of.insert(place.id, None);
            }
        }
        let unit_of = unit_of.into_iter().filter_map(|(id, block)| Some((id, block?))).collect();
        Self { unit_of, paths: blocks.to_vec() }
    }

    /// Returns whether the parameter belongs to a unit.
    pub fn has(&self, id: ParamId) -> bool {
        self.unit_of.contains_key(&id)
    }

    /// Returns the unit of a parameter, if it has one.
    pub fn of_param(&self, id: ParamId) -> Option<usize> {
        self.unit_of.get(&id).copied()
    }

    /// Returns the number of units.
    pub fn count(&self) -> usize {
        self.paths.len()
    }

    /// Returns the path of a unit.
    pub fn path(&self, unit: usize) -> &str {
        &self.paths[unit]
    }

    /// Returns the unit that a block is, or is a part of. A block with parameters of several units is not a unit; the
    /// segments inside it are.
    pub fn of_block<B: Module>(&self, block: &B) -> Option<usize> {
        let mut found = HashSet::new();
        each_param(block, |param| found.extend(self.of_param(param.id())));
        let mut units = found.into_iter();
        units.next().filter(|_| units.next().is_none())
    }
}

/// How units are handled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handling {
    pub units: Units,
    /// Gradients are summed over the ranks in the backward pass.
    pub sharding: Option<Arc<Sharding>>,
    /// Parameters are gathered for the segment.
    pub gathers: bool,
    /// Parameters are stored on the host.
    pub fetches: bool,
    /// Gradients go to the host in the backward pass.
    pub lands: bool,
    /// The most bytes in one copy between host and device, if a strategy sets them.
    pub moves: Option<usize>,
    /// Where parameters without a value wait.
    pub offloaded: Option<Arc<dyn OffloadedParams>>,
}

impl Handling {
    /// Returns the most bytes in one copy between host and device, unless a tensor alone has more.
    pub fn moves(&self) -> usize {
        self.moves.unwrap_or(BUCKET_BYTES)
    }

    /// Returns whether a unit's parameters exist only while its segment runs.
    pub fn provides(&self) -> bool {
        self.gathers || self.fetches
    }

    /// Returns whether a unit's gradients are taken from its segment.
    pub fn delivers(&self) -> bool {
        self.sharding.is_some() || self.lands || self.provides()
    }

    /// Returns what is known of a parameter that waits outside memory.
    pub fn offloaded(&self, id: ParamId) -> Option<OffloadedParam> {
        self.offloaded.as_ref()?.param(id)
    }

    /// Returns whether the parameter itself is stored elsewhere.
    pub fn is_away(&self, id: ParamId) -> bool {
        self.fetches || self.gathers && self.sharding.as_ref().is_some_and(|sharding| sharding.shards(id))
    }
}
