//! The parameters that a pass waits for.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use firebrick_strategies::{Paths, StrategyError, each_distinct_param, each_param};

use crate::accounting::Placement;

/// The parameters of a replica that are on their way from other ranks when a pass begins. They are allocated during the pass,
/// and are not activations.
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

    /// Returns the bytes that have come to the device since: of the replica, and of what was gathered of the master where
    /// the replica has another dtype.
    pub fn bytes<M: Module>(&self, master: &M, replica: &M, placement: Placement) -> usize {
        let Placement { master_on_host, replica_on_host, .. } = placement;
        let (mut bytes, mut come) = (0, HashMap::new());
        each_distinct_param(replica, |param| {
            if !replica_on_host && self.0.contains(&param.id()) && param.is_initialized() {
                bytes += param.bytes();
                come.insert(param.id(), (param.dtype(), param.shape().iter().product::<usize>()));
            }
        });
        each_distinct_param(master, |param| {
            if let Some((dtype, elements)) = come.get(&param.id())
                && !master_on_host
                && *dtype != param.dtype()
            {
                bytes += elements * param.dtype().size();
            }
        });
        bytes
    }
}
