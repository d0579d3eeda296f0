//! What leaves a session: its part of a checkpoint, from which it continues, and the whole model in the structure of the input
//! model.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::{Tensor, TensorData};
use burn::train::Interrupter;
use firebrick_strategies::{
    Adaptation, LowRank, ParamMap, SavedStates, Shard, StageState, each_param, map_params, relift,
    values_on_host,
};
use firebrick_world::{host_device, is_host};

use super::Session;
use super::updater::{published, published_to_disk};
use super::weights::Weights;
use crate::checkpoint::{
    Layout, ParameterPlace, Resumed, Snapshot, StateAt, TrainerState, Waiting, load, load_onto_disk,
    load_optimizer,
};
use crate::scratch::Values;
use crate::{Adapters, TrainError};

impl<M: Module> Session<M> {
    /// The names of the master's tensors, and the part of each that this rank saves.
    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The states of the strategies, in order.
    pub fn strategies(&mut self) -> Vec<StageState> {
        self.stages.save()
    }

    /// Copies the part of the state that this rank saves.
    pub(crate) fn snapshot(
        &mut self,
        layout: &Arc<Layout>,
        state: TrainerState,
    ) -> Result<Snapshot, TrainError> {
        debug_assert!(self.updater.undecided.is_none(), "a save begins with what is decided");
        let copied = self.copied(Which::Master);
        let average = self.copied(Which::Average).or_else(|| self.stages.averaged());
        let master = self.weights.master();
        let on_device = !master.devices().iter().all(is_host);
        // The optimizers of Burn are read tensor by tensor.
        let read = on_device.then(|| self.updater.optimizer.on_host());
        let optimizer = match (&self.updater.disk, &read) {
            (Some(disk), _) => StateAt::Disk(disk),
            (None, Some(read)) => StateAt::Device(read),
            (None, None) => StateAt::Host(&self.updater.optimizer),
        };
        let master = copied.as_ref().unwrap_or(master);
        Ok(Snapshot::take(layout, &self.ranks.world, master, average.as_ref(), &optimizer, state)?)
    }

    /// Continues from a checkpoint, which may have any number of ranks and other strategies. Every rank calls it.
    ///
    /// # Errors
    ///
    /// The checkpoint belongs to another model or optimizer, the run was interrupted, or a rank is lost. The session is unusable afterwards.
    pub(crate) fn resume(
        &mut self,
        layout: &Layout,
        from: &Resumed,
        interrupter: &Interrupter,
    ) -> Result<(), TrainError> {
        let (checkpoint, state) = (&from.checkpoint, &from.state);
        let fresh = self.strategies();
        let Some(master) = self.weights.take_master() else { return Ok(()) };
        let device = self.pass.device().clone();
        let offloaded = self.weights.offloaded().cloned();
        let master = self.stages.unalias_master(master);
        let master = match &offloaded {
            None => master,
            Some(offloaded) => offloaded.outline(master, Values::Master, true),
        };
        let written = offloaded.as_deref().map_or(Waiting::Nothing, Waiting::Written);
        let load_master = |(master, saved)| load(master, layout, saved, interrupter, written);
        let reclaimed = (master, checkpoint.parameters());
        let master = device.memory_persistent_allocations(reclaimed, load_master)?;
        let saved = checkpoint.optimizer();
        let master = match &mut self.updater.disk {
            Some(disk) => {
                load_onto_disk(&mut self.updater.optimizer, disk, &master, layout, saved, interrupter)?;
                self.memory.bytes.count_disk(disk.bytes(), disk.file());
                master
            }
            None => {
                let load_state = |(optimizer, master)| {
                    let loaded = load_optimizer(optimizer, &master, layout, saved, interrupter)?;
                    Ok::<_, TrainError>((loaded, master))
                };
                let optimizer = (self.updater.optimizer.clone(), master);
                let loaded = device.memory_persistent_allocations(optimizer, load_state)?;
                let master;
                ((self.updater.optimizer, self.memory.bytes.optimizer), master) = loaded;
                master
            }
        };
        let pair = match &offloaded {
            None => published(&self.pass, &mut self.stages, master)?,
            Some(offloaded) => {
                let master = offloaded.renewed(master, Values::Master, |_| true);
                self.stages.updated(&master);
                published_to_disk(&mut self.stages, offloaded, master, self.updater.moves)?
            }
        };
        self.weights = Weights::new(pair, offloaded.clone());
        let mut states = SavedStates::matching(fresh, state.strategies().to_vec());
        self.stages.restore(&mut states)?;
        states.finish()?;
        if let Some(average) = self.stages.averaged() {
            let average = match checkpoint.average() {
                Some(saved) => {
                    let left = offloaded.as_deref().map_or(Waiting::Nothing, Waiting::Left);
                    load(average, layout, saved, interrupter, left)?
                }
                None => self.weights.master().clone(),
            };
            self.stages.resume_average(average);
        }
        let averaged = self.stages.averaged();
        self.memory.bytes.count(self.weights.master(), self.weights.replica(), averaged.as_ref());
        self.weights.renew();
        self.weights.check_disk()?;
        self.updater.updates = state.step();
        Ok(())
    }
}

impl<M: Module> Session<M> {
    /// Gathers the master into one whole model, outside autodiff, with the parts that strategies attached to it: on
    /// `root` alone, or on every rank if there is no root. Every rank calls it. If ranks shard the master, the result
    /// is in host memory.
    pub fn adapted(&mut self, root: Option<usize>) -> Result<Option<M>, TrainError> {
        let master = self.weights.master().clone();
        let whole = self.gathered(master, root)?;
        let whole = whole.map(|master| self.in_one_place(master.valid()));
        self.having_read(Ok(whole))
    }

    /// Gathers a model of the master's parts into one whole model, from the ranks that shard it and from those that hold its
    /// parts.
    fn gathered(&mut self, model: M, root: Option<usize>) -> Result<Option<M>, TrainError> {
        let Some(parts) = self.adaptation.parts().cloned() else {
            return Ok(self.stages.gather_full(model, root)?);
        };
        // The ranks that hold the parts of a model are neighbours.
        let each = parts.ranks().size();
        let own = self.stages.gather_full(model, root.map(|root| root / each))?;
        Ok(own.map(|own| parts.whole(own, root.map(|root| root % each))).transpose()?.flatten())
    }

    /// Restores the input model's structure from a whole model.
    pub fn given_back(&self, adapted: M) -> M {
        self.adaptation.give_back(adapted)
    }

    /// The adapters of a whole model, including parameters that are trained whole beside them, if there are any.
    pub fn adapters(&self, adapted: &M) -> Option<Adapters> {
        Adapters::of(adapted, &self.adaptation)
    }

    /// The low-rank factors that are trained, if there are any.
    pub fn low_rank(&self) -> Option<LowRank> {
        self.adaptation.low_rank()
    }

    /// The average of the master, if a strategy keeps one, with the input model's structure. See
    /// [`adapted`](Self::adapted) for `root`.
    pub fn whole_average(&mut self, root: Option<usize>) -> Result<Option<M>, TrainError> {
        let Some(averaged) = self.stages.averaged() else { return Ok(None) };
        let whole = self.gathered(averaged, root)?;
        let whole = whole.map(|averaged| self.given_back(self.in_one_place(averaged.valid())));
        self.having_read(Ok(whole))
    }

    /// Like [`adapted`](Self::adapted), or the average if there is one, but on the first rank alone and in host memory.
    /// Training does not change it. Every rank calls it.
    pub fn on_host(&mut self) -> Result<Option<M>, TrainError> {
        let average = self.stages.averaged();
        if let Some(copy) = self.copied(if average.is_some() { Which::Average } else { Which::Master }) {
            return Ok(Some(copy.valid()));
        }
        let model = self.stages.averaged().unwrap_or_else(|| self.weights.master().clone());
        let whole = self.gathered(model, Some(0))?;
        let whole = whole.map(|whole| ToHost::of(whole.valid()));
        self.weights.renew();
        self.having_read(Ok(whole))
    }

    /// Returns a copy of the master or of its average in host memory, if a single rank trains on a device: reads it once,
    /// however many files it is written to before the next update.
    fn copied(&mut self, which: Which) -> Option<M> {
        let master = self.weights.master().clone();
        if self.ranks.world.size() > 1 || master.devices().iter().all(is_host) {
            return None;
        }
        let known = match which {
            Which::Master => &mut self.weights.copies.master,
            Which::Average => &mut self.weights.copies.average,
        };
        if known.is_none() {
            let model = match which {
                Which::Master => Some(master),
                Which::Average => self.stages.averaged(),
            };
            *known = model.map(ToHost::of);
        }
        known.clone()
    }

    /// The files' view of a finished run: the whole model with the input model's structure, its average if there is one, and
    /// its adapters. It is in host memory if a save has just copied it there, and otherwise what is given.
    pub fn to_write(&mut self, whole: &Whole<M>) -> Whole<M> {
        let Some(master) = self.weights.copies.master.clone() else { return whole.clone() };
        let average = self.copied(Which::Average).map(|average| self.given_back(average.valid()));
        let adapted = master.valid();
        let adapters = self.adapters(&adapted);
        (self.given_back(adapted), average, adapters)
    }

    /// The changes that strategies made to the model.
    pub fn adaptation(&self) -> &Adaptation {
        &self.adaptation
    }

    /// Moves a whole model to the run's device, if its replica is as large; otherwise leaves it where it is.
    pub fn returned(&self, whole: M) -> M {
        match self.comes_together() && !self.shares_replica() {
            true => whole.to_device(&self.device().clone().inner()),
            false => whole,
        }
    }

    /// Moves all tensors of a whole model to the host, if the ranks' shards were gathered there.
    fn in_one_place(&self, whole: M) -> M {
        match self.comes_together() {
            true => whole.to_device(&host_device()),
            false => whole,
        }
    }

    /// Whether ranks shard or divide the master.
    fn comes_together(&self) -> bool {
        let is_divided = |place: &ParameterPlace| place.shard.is_some() || place.part.is_some();
        self.ranks.world.size() > 1 && self.layout.places().any(|(_, place)| is_divided(place))
    }

    /// Whether each rank holds only a part of the replica.
    fn shares_replica(&self) -> bool {
        let is_divided = self.adaptation.parts().is_some();
        is_divided
            || self.rows(self.replica()).any(|(id, rows)| {
                self.shard(id).is_some_and(|shard| shard.padded < shard.whole && rows == shard.padded)
            })
    }

    /// The part of a parameter that the master holds on this rank, if ranks shard it.
    fn shard(&self, id: ParamId) -> Option<&Shard> {
        self.layout.place(id)?.shard.as_ref()
    }

    /// The length of each parameter's first axis.
    fn rows(&self, model: &M) -> impl Iterator<Item = (ParamId, usize)> + use<M> {
        let mut all = Vec::new();
        each_param(model, |param| all.extend(param.shape().first().map(|rows| (param.id(), *rows))));
        all.into_iter()
    }
}

/// A whole model with the input model's structure, its average, and its adapters.
pub type Whole<M> = (M, Option<M>, Option<Adapters>);

/// The weights to copy to the host.
#[derive(Clone, Copy)]
enum Which {
    Master,
    Average,
}

/// Copies a device's tensors to the host. Those on the host are shared: while others read a tensor, an update writes its
/// result to new memory.
#[derive(Default)]
struct ToHost(HashMap<ParamId, TensorData>);

impl ToHost {
    fn of<M: Module>(model: M) -> M {
        if model.devices().iter().all(is_host) {
            return model;
        }
        let mut to_host = Self::default();
        values_on_host(
            &model,
            |_| true,
            |id, data| {
                to_host.0.insert(id, data);
            },
        );
        map_params(model, &mut to_host)
    }
}

impl ParamMap for ToHost {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        if is_host(&value.device()) {
            return value;
        }
        let Some(data) = self.0.remove(&id) else { return value };
        let dtype = data.dtype();
        relift(Tensor::from_data(data, (&host_device(), dtype)), &value)
    }
}
