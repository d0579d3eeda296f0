//! What a run's strategies make of each parameter of a model that is not made.

use std::collections::{HashMap, HashSet};

use burn::module::ParamId;
use firebrick_strategies::{Adaptation, Communicator, Paths, Strategy};

use crate::accounting::{Placement, dtypes};
use crate::run::{Parts, Trainable, skeleton};
use crate::session::Prepared;
use crate::{Run, RunError, StrategyConfig};

/// What strategies make of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Treated {
    /// Bytes of an element of the master.
    pub master: u64,
    /// Bytes of an element of the replica.
    pub replica: u64,
    /// Whether it has a gradient.
    pub trained: bool,
}

/// What a run's strategies make of the model, found by starting them on one that has the same parts and hardly any
/// numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct ParamLayout {
    /// By the path where it stands first.
    pub of: HashMap<String, Treated>,
    /// What waits on the host.
    pub placement: Placement,
}

impl ParamLayout {
    /// # Errors
    ///
    /// The strategies do not fit one another, the model, the optimizer or the device.
    pub fn of<M: Trainable>(
        run: &Run,
        strategies: &Vec<StrategyConfig>,
        parts: &Parts<M>,
    ) -> Result<Self, RunError> {
        let skeleton: M = skeleton(parts.config.clone(), &parts.device);
        let adapted = strategies.adapt(skeleton.clone(), &mut Adaptation::default())?;
        let trained: HashSet<ParamId> =
            firebrick_strategies::trained(&adapted).into_iter().map(|one| one.id).collect();
        let places = Paths::of(&adapted);
        let trains: HashMap<String, bool> =
            places.places().iter().map(|place| (place.path.clone(), trained.contains(&place.id))).collect();
        let optimizer = run.optimizer.build(&skeleton, &run.groups())?;
        let device = Some(parts.device.clone());
        let prepared =
            Prepared::new(strategies, skeleton, device, &optimizer, Communicator::solo(), run.seed)?;
        let session = prepared.start(optimizer, run.schedule, run.seed, 1)?;
        let replica: HashMap<String, u64> =
            dtypes(session.replica()).into_iter().map(|(path, dtype)| (path, dtype.size() as u64)).collect();
        let of = dtypes(session.master()).into_iter().map(|(path, dtype)| {
            let master = dtype.size() as u64;
            let replica = replica.get(&path).copied().unwrap_or(master);
            let trained = trains.get(&path).copied().unwrap_or(true);
            (path, Treated { master, replica, trained })
        });
        Ok(Self { of: of.collect(), placement: session.bytes().placement })
    }

    /// Of the parameter that stands first at this path.
    pub fn get(&self, path: &str) -> Treated {
        self.of.get(path).copied().unwrap_or(Treated { master: 4, replica: 4, trained: true })
    }
}
