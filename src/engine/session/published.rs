//! Publishes a new master: makes the replica of it.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::tensor::Device;
use firebrick_kernels::optim::Replicas;
use firebrick_strategies::{Pass, Stages, StrategyError};

/// What an update wrote besides the master.
#[derive(Default)]
pub(super) struct Written {
    /// The number of the replica's parameters that are copies written by the update.
    pub taken: usize,
    /// The parameters that have such a copy.
    pub params: HashSet<ParamId>,
}

/// Publishes a new master: informs the stages of it, and returns master and replica, once all of the replica is there.
pub(super) fn published<M: Module>(
    pass: &Pass,
    stages: &mut Stages<M>,
    master: M,
) -> Result<(M, M), StrategyError> {
    let (pair, _) = published_from(pass.device(), stages, master, true, |master| (master, None))?;
    let pair = arrived(pass.device(), stages, pair);
    pass.check()?;
    Ok(pair)
}

/// Waits for the parameters of a replica that are on their way from other ranks, and lets the master read their memory where
/// both hold the same values. [`Pass::check`] tells whether all of them have come.
pub(super) fn arrived<M: Module>(device: &Device, stages: &mut Stages<M>, pair: (M, M)) -> (M, M) {
    device.memory_persistent_allocations((pair, stages), |((master, replica), stages)| {
        (stages.alias_master(master, &replica), replica)
    })
}

/// Publishes a master that is computed from `input`, together with the copies that its update wrote. The stages are informed
/// only if it `is_decided`. Parameters of the replica may still be [on their way](arrived).
///
/// Tensors that outlive a step are allocated in the device's persistent pool, apart from the activations of each step. An
/// update's temporaries are allocated there too: they have the sizes of parameters, and the next update reuses them.
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
        Ok(((master, replica?), written))
    })
}
