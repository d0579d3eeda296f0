//! A session whose parameters of blocks wait on a disk.
//!
//! Between two steps, master and replica have initializers in place of these parameters. A pass reads them block by block
//! and leaves no value in the model. Whatever else reads one leaves its value there until the next step, which
//! [renews](Session::renew) the initializers.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use firebrick_strategies::{Stages, each_distinct_param, each_param, with_values};

use super::{Session, Weights};
use crate::TrainError;
use crate::scratch::{ParkedParams, Values};

/// The parameters of a session that wait.
pub(super) struct Parking {
    pub params: Arc<ParkedParams>,
    /// Those that have no value in the replica either. A strategy behind this one may have gathered others there.
    of_replica: HashSet<ParamId>,
}

impl Parking {
    /// Returns the parking of a replica that has just been published.
    pub fn of<M: Module>(params: Arc<ParkedParams>, replica: &M) -> Self {
        let mut of_replica = HashSet::new();
        each_param(replica, |param| {
            if !param.is_initialized() && params.has(param.id()) {
                of_replica.insert(param.id());
            }
        });
        Self { params, of_replica }
    }

    /// Drops the values of parameters that wait, if something has read them.
    fn renewed<M: Module>(&self, master: M, replica: M) -> (M, M) {
        let master = self.params.renewed(master, Values::Master, |_| true);
        (master, self.params.renewed(replica, Values::Replica, |id| self.of_replica.contains(&id)))
    }
}

impl<M: Module> Session<M> {
    /// Drops the values of parameters that wait, if something has read them.
    pub(super) fn renew(&mut self) {
        let Some(parking) = &self.parking else { return };
        let Some((master, replica)) = self.weights.pair.take() else { return };
        self.weights = Weights::new(parking.renewed(master, replica));
    }

    /// Returns the model in validation mode. Parameters of the replica that wait still do.
    pub(super) fn valid(&self, model: &M) -> M {
        match &self.parking {
            None => model.valid(),
            Some(Parking { params, .. }) => params.valid(model, Values::Replica),
        }
    }

    /// Returns a model of which only dtypes, shapes and settings are read.
    pub(super) fn outline(&self, model: &M, values: Values) -> M {
        match &self.parking {
            None => model.clone(),
            Some(Parking { params, .. }) => params.outline(model.clone(), values, true),
        }
    }

    /// Returns the error of the disk, if a read has failed since this was last asked.
    ///
    /// # Errors
    ///
    /// The disk has failed, or has returned other bytes than were written.
    pub fn check_disk(&self) -> Result<(), TrainError> {
        match &self.parking {
            None => Ok(()),
            Some(Parking { params, .. }) => Ok(params.check()?),
        }
    }

    /// Returns the result of something that reads parameters, or the error of the disk if it failed meanwhile.
    ///
    /// # Errors
    ///
    /// The disk has failed, as [`check_disk`](Self::check_disk) reports, or `result` is an error.
    pub fn having_read<T>(&self, result: Result<T, TrainError>) -> Result<T, TrainError> {
        self.check_disk()?;
        result
    }
}

/// Publishes a master whose parameters wait, in buckets of at most `most` bytes if the stages can. Returns master and replica.
///
/// # Errors
///
/// The disk is full or fails, or another rank is lost.
pub(super) fn published_parked<M: Module>(
    stages: &mut Stages<M>,
    params: &Arc<ParkedParams>,
    master: M,
    most: Option<usize>,
) -> Result<((M, M), Parking), TrainError> {
    let replica = match stages.publishes_each() {
        false => stages.publish(master.clone())?,
        true => {
            for ids in buckets(params, &master, most.unwrap_or(usize::MAX)) {
                let masters = params.read_masters(&ids)?;
                let published = stages.publish_each(masters.clone())?;
                params.put_replicas(masters, published)?;
            }
            let mut others = Vec::new();
            each_distinct_param(&master, |param| {
                if !params.has(param.id()) {
                    others.push((param.id(), param.flat()));
                }
            });
            let others = stages.publish_each(others)?.into_iter().collect();
            let replica = params.renewed(master.clone(), Values::Replica, |_| true);
            stages.publish_rest(with_values(replica, others))?
        }
    };
    let master = stages.alias_master(master, &replica);
    params.check()?;
    let parking = Parking::of(params.clone(), &replica);
    Ok((parking.renewed(master, replica), parking))
}

/// Splits the parameters that wait into runs of neighbours in the model, of at most `most` bytes of the master each, unless
/// one alone has more.
pub(super) fn buckets<M: Module>(params: &ParkedParams, master: &M, most: usize) -> Vec<Vec<ParamId>> {
    let (mut runs, mut sum) = (Vec::<Vec<ParamId>>::new(), 0);
    each_distinct_param(master, |param| {
        let Some(stored) = params.stored(param.id(), Values::Master) else { return };
        let bytes = stored.tensors[0].bytes;
        match runs.last_mut().filter(|_| sum + bytes <= most) {
            Some(run) => {
                run.push(param.id());
                sum += bytes;
            }
            None => {
                runs.push(vec![param.id()]);
                sum = bytes;
            }
        }
    });
    runs
}
