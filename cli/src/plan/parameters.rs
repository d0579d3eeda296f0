//! The dtypes that a run's strategies give each parameter of a model that is not created.

use std::collections::{HashMap, HashSet};

use burn::module::ParamId;
use firebrick_strategies::cost::PlannedParam;
use firebrick_strategies::{Adaptation, Composition, Paths};
use firebrick_world::Communicator;

use crate::run::{Parts, Shape, recipes, skeleton};
use crate::{Run, RunError, RunStrategy};
use firebrick::accounting::dtypes;
use firebrick::engine::session::PreparedRun;

/// How strategies treat a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ParamBytes {
    /// Bytes of a master element.
    pub master: u64,
    /// Bytes of a replica element.
    pub replica: u64,
    /// Whether the parameter has a gradient.
    pub trained: bool,
}

/// How a run's strategies treat the parameters of the model. Found by starting the strategies on a model with the same
/// parts and the smallest parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct ParamLayout {
    /// The parameters by their first path.
    pub of: HashMap<String, ParamBytes>,
}

impl ParamLayout {
    /// # Errors
    ///
    /// The strategies do not fit one another, the model, the optimizer or the device.
    pub fn of(run: &Run, strategies: &[RunStrategy], parts: &Parts) -> Result<Self, RunError> {
        let skeleton = skeleton(&parts.config, &parts.device);
        let optimizer = run.groups().build(&skeleton, &*run.optimizer)?;
        // One rank tells what a parameter takes; which ranks share tokens does not matter for it.
        let on_one = strategies.iter().filter(|strategy| strategy.effects().context.is_none());
        let strategies = recipes(&on_one.cloned().collect::<Vec<_>>());
        let adaptation = || Adaptation::seeded(run.seed).with_fresh(parts.fresh.clone());
        let adapted = strategies.adapt(skeleton.clone(), &mut adaptation())?;
        let trained: HashSet<ParamId> =
            firebrick_strategies::trained(&adapted).into_iter().map(|one| one.id).collect();
        let places = Paths::of(&adapted);
        let trains: HashMap<String, bool> =
            places.places().iter().map(|place| (place.path.clone(), trained.contains(&place.id))).collect();
        let device = Some(parts.device.clone());
        let prepared =
            PreparedRun::new(&strategies, skeleton, device, &optimizer, Communicator::solo(), adaptation())?;
        let session = prepared.start(optimizer, run.schedule.clone(), run.seed, 1)?;
        let replica: HashMap<String, u64> =
            dtypes(session.replica()).into_iter().map(|(path, dtype)| (path, dtype.size() as u64)).collect();
        let of = dtypes(session.master()).into_iter().map(|(path, dtype)| {
            let master = dtype.size() as u64;
            let replica = replica.get(&path).copied().unwrap_or(master);
            let trained = trains.get(&path).copied().unwrap_or(true);
            (path, ParamBytes { master, replica, trained })
        });
        Ok(Self { of: of.collect() })
    }

    /// Returns a parameter with what strategies do to it.
    pub fn planned<'a>(&self, shape: &'a Shape) -> PlannedParam<'a> {
        let ParamBytes { master, replica, trained } = self.get(&shape.path);
        PlannedParam {
            shape: &shape.shape,
            master_bytes: master,
            replica_bytes: replica,
            is_trained: trained,
            in_block: shape.in_block,
            in_last_block: shape.in_last_block,
            is_factor: shape.is_factor,
            packing: shape.packing,
        }
    }

    /// Returns the treatment of the parameter whose first path is this one.
    fn get(&self, path: &str) -> ParamBytes {
        self.of.get(path).copied().unwrap_or(ParamBytes { master: 4, replica: 4, trained: true })
    }
}
