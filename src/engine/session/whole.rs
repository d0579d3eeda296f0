//! The model that a session returns: whole, and in the structure of the input model.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::tensor::{Tensor, TensorData};
use firebrick_strategies::{
    Adaptation, LowRank, ParamMap, Shard, each_param, map_params, relift, values_on_host,
};
use firebrick_world::{host_device, is_host};

use super::Session;
use crate::{Adapters, TrainError};

impl<M: Module> Session<M> {
    /// Gathers the master into one whole model, outside autodiff, with the parts that strategies attached to it: on
    /// `root` alone, or on every rank if there is no root. Every rank calls it. If ranks shard the master, the result
    /// is in host memory.
    pub fn adapted(&mut self, root: Option<usize>) -> Result<Option<M>, TrainError> {
        let master = self.weights.master().clone();
        let whole = self.stages.gather_full(master, root)?;
        let whole = whole.map(|master| self.in_one_place(master.valid()));
        self.having_read(Ok(whole))
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
        let whole = self.stages.gather_full(averaged, root)?;
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
        let whole = self.stages.gather_full(model, Some(0))?;
        let whole = whole.map(|whole| ToHost::of(whole.valid()));
        self.weights.renew();
        self.having_read(Ok(whole))
    }

    /// Returns a copy of the master or of its average in host memory, if a single rank trains on a device: reads it once,
    /// however many files it is written to before the next update.
    pub(super) fn copied(&mut self, which: Which) -> Option<M> {
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

    /// Whether ranks shard the master.
    fn comes_together(&self) -> bool {
        self.ranks.world.size() > 1 && self.layout.places().any(|(_, place)| place.shard.is_some())
    }

    /// Whether each rank holds only a part of the replica.
    fn shares_replica(&self) -> bool {
        self.rows(self.replica()).any(|(id, rows)| {
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
pub(super) enum Which {
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
