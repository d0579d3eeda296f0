//! Publishes a new master: makes the replica of it.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::tensor::Device;
use firebrick_kernels::optim::Replicas;
use firebrick_strategies::{Stages, StrategyError};

/// What an update wrote besides the master.
#[derive(Default)]
pub(super) struct Written {
    /// The number of the replica's parameters that are copies written by the update.
    pub taken: usize,
    /// The parameters that have such a copy.
    pub params: HashSet<ParamId>,
}

/// Publishes a new master: informs the stages of it, and returns master and replica. Tensors that outlive a step are
/// allocated in the device's persistent pool, apart from the activations of each step. An update's temporaries are
/// allocated there too: they have the sizes of parameters, and the next update reuses them.
pub(super) fn published<M: Module>(
    device: &Device,
    stages: &mut Stages<M>,
    master: M,
) -> Result<(M, M), StrategyError> {
    Ok(published_from(device, stages, master, true, |master| (master, None))?.0)
}

/// Like [`published`], with a master that is computed from `input`, and the copies that its update wrote. The stages are
/// informed only if it `is_decided`.
pub(super) fn published_from<M: Module, I: Send>(
    device: &Device,
    stages: &mut Stages<M>,
    input: I,
    is_decided: bool,
    master: impl Fn(I) -> (M, Option<Replicas>) + Send + Sync,
) -> Result<((M, M), Written), StrategyError> {
    device.memory_persistent_allocations((input, stages), |(input, stages)| {
        let (master, written) = master(input);
        if is_decided {
            stages.updated(&master);
        }
        let mut publish = || stages.publish(master.clone());
        let (replica, written) = match written {
            None => (publish(), Written::default()),
            Some(written) => {
                let params = written.params(&master);
                let (replica, taken) = written.lend(publish);
                (replica, Written { taken, params })
            }
        };
        let replica = replica?;
        let master = stages.alias_master(master, &replica);
        Ok(((master, replica), written))
    })
}
