//! The parameters that a pass gets from other ranks.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use firebrick_strategies::{Paths, StrategyError, each_distinct_param, each_param};

/// The parameters of a replica that have no value when a pass begins.
pub(super) struct Awaited(HashSet<ParamId>);

impl Awaited {
    pub fn of<M: Module>(replica: &M) -> Self {
        let mut awaited = HashSet::new();
        each_param(replica, |param| {
            if !param.is_initialized() {
                awaited.insert(param.id());
            }
        });
        Self(awaited)
    }

    /// Checks that the parameters that have come require a gradient in the replica where the master's do. Burn sets a lazy
    /// parameter together with its clones.
    ///
    /// # Errors
    ///
    /// The pass has set a clone of one.
    pub fn check<M: Module>(&self, master: &M, replica: &M) -> Result<(), StrategyError> {
        let mut trained = HashMap::new();
        each_distinct_param(replica, |param| {
            if self.0.contains(&param.id()) && param.is_initialized() {
                trained.insert(param.id(), param.requires_grad());
            }
        });
        let mut other = None;
        each_distinct_param(master, |param| {
            if trained.get(&param.id()).is_some_and(|trained| *trained != param.requires_grad()) {
                other = other.or(Some(param.id()));
            }
        });
        other.map_or(Ok(()), |id| {
            let parameter = Paths::of(master).path(id).unwrap_or("a parameter").into();
            Err(StrategyError::SetOnTheWay { parameter })
        })
    }
}
