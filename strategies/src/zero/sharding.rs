//! Divides a model's parameters among the ranks and gathers them again.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use firebrick_world::{
    Communicator, Gathering, PartShape, Uploading, all_on_host, host_device, numbers, on_host,
};

use super::rows::Rows;
use crate::buckets::{BUCKET_BYTES, buckets, bytes};
use crate::params::{map_params_later, without_values};
use crate::segment::Faults;
use crate::{
    ParamMap, Paths, Reduces, Shard, StrategyError, each_distinct_param, each_param, map_params, relift,
};

/// Replaces each parameter by this rank's part of rank 0's.
#[derive(Clone)]
struct Division {
    sharding: Arc<Sharding>,
    device: Device,
    /// Shared, because each parameter that is distributed later keeps a copy of the division.
    paths: Arc<Paths>,
    faults: Faults,
}

impl ParamMap for Division {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        // Once the world has ended, each further exchange fails at once.
        match self.sharding.own(id, self.paths.path(id).unwrap_or_default(), &value) {
            Ok(own) => {
                let dtype = own.dtype();
                relift(Tensor::from_data(own, (&self.device, dtype)), &value)
            }
            Err(error) => {
                self.faults.report(error);
                let rows = self.sharding.rows(id).map(Rows::per_rank);
                let mut shape = value.dims();
                shape[0] = rows.unwrap_or(shape[0]);
                relift(Tensor::zeros(shape, (&self.device, value.dtype())), &value)
            }
        }
    }
}

/// Which parameters are sharded, and among which ranks.
pub struct Sharding {
    /// All ranks.
    pub(super) world: Communicator,
    /// The ranks that share a copy of the parameters.
    pub(super) sharing: Communicator,
    /// The ranks that hold the same shards, if there are several copies.
    pub(super) copies: Option<Communicator>,
    /// The rows of each sharded parameter.
    rows: HashMap<ParamId, Rows>,
    /// The dtype in which gradients travel, if not their own.
    pub(super) wire: Option<FloatDType>,
    /// Bytes that are on their way together.
    pub(super) bucket: usize,
    /// Publications of a master so far.
    publications: AtomicU64,
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({} parameters among {} ranks)", self.rows.len(), self.sharing.size())
    }
}

impl Sharding {
    /// Shards the parameters that [`Reduces::padded_rows`] says. [`Reduces::sharing`] divides the number of ranks.
    pub fn of<M: Module>(model: &M, world: Communicator, reduces: &Reduces) -> Self {
        let (mut rows, ranks) = (HashMap::new(), world.size());
        let each = reduces.sharing(ranks);
        each_param(model, |param| {
            let shape = param.shape();
            if reduces.padded_rows(&shape, param.learns(), ranks).is_some() {
                rows.insert(param.id(), Rows::of(shape[0], each));
            }
        });
        let (sharing, copies) = match each == ranks {
            true => (world.clone(), None),
            false => (world.split(|rank| rank / each), Some(world.split(|rank| rank % each))),
        };
        let (wire, bucket, publications) = (reduces.sum_in, BUCKET_BYTES, AtomicU64::default());
        Self { world, sharing, copies, rows, wire, bucket, publications }
    }

    /// Sets the bytes of parameters or gradients that are on their way together.
    pub fn in_buckets_of(self, bytes: usize) -> Self {
        Self { bucket: bytes, ..self }
    }

    /// Returns all ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Returns whether several ranks share a copy of the parameters.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.size() > 1
    }

    /// Returns the shard of a parameter that this rank holds, if it is sharded.
    pub fn shard(&self, id: ParamId) -> Option<Shard> {
        let copy = self.copies.as_ref().map_or(0, Communicator::rank);
        Some(self.rows(id)?.of_rank(self.sharing.rank(), copy))
    }

    /// Returns whether this parameter is sharded.
    pub fn shards(&self, id: ParamId) -> bool {
        self.rows.contains_key(&id)
    }

    /// Returns the rows that each rank holds of a parameter, if it is sharded.
    pub fn rows(&self, id: ParamId) -> Option<Rows> {
        self.rows.get(&id).copied()
    }

    /// Records that a master was published: what was gathered of an earlier one is out of date.
    pub(super) fn published(&self) {
        self.publications.fetch_add(1, Relaxed);
    }

    /// Returns the number of the last publication of a master.
    pub(crate) fn publication(&self) -> u64 {
        self.publications.load(Relaxed)
    }

    /// Sums one number of each rank that shares a copy, in rank order, so that all ranks get the same result.
    pub fn sum_of(&self, number: Tensor<1>) -> Result<Tensor<1>, StrategyError> {
        let device = number.device();
        let mine = numbers(vec![number]).map_err(|error| StrategyError::Read(error.to_string()))?;
        let sum: f64 = self.sharing.numbers("the norm of the gradients", &mine)?.iter().flatten().sum();
        Ok(Tensor::from_data([sum as f32], &device))
    }

    /// Returns the sum of one number of each rank, given those of all ranks: over the ranks that share a copy, the first copy
    /// on every rank.
    pub(crate) fn sum(&self, numbers: &[f64]) -> f64 {
        numbers.iter().take(self.sharing.size()).sum()
    }

    /// Distributes rank 0's model: returns the model with this rank's part on `device`. Goes parameter by parameter
    /// through host memory, so that the device never holds more than this rank's part.
    pub fn divide<M: Module>(self: &Arc<Self>, model: M, device: &Device) -> Result<M, StrategyError> {
        let faults = Faults::default();
        let mut division = self.division(&model, device, &faults);
        let model = map_params(model, &mut division);
        faults.check().map(|()| model)
    }

    /// Like [`divide`](Self::divide), but each parameter is distributed when it is first read: on all ranks in the same
    /// order. Errors go to `faults`.
    pub(super) fn divide_later<M: Module>(self: &Arc<Self>, model: M, device: &Device, faults: &Faults) -> M {
        let division = self.division(&model, device, faults);
        // A rank may have values that others draw: the order must not depend on it.
        map_params_later(without_values(model), division)
    }

    fn division<M: Module>(self: &Arc<Self>, model: &M, device: &Device, faults: &Faults) -> Division {
        let (sharding, device, faults) = (self.clone(), device.clone(), faults.clone());
        Division { sharding, device, paths: Arc::new(Paths::of(model)), faults }
    }

    /// Returns this rank's part of rank 0's parameter.
    fn own<const D: usize>(
        &self,
        id: ParamId,
        what: &str,
        value: &Tensor<D>,
    ) -> Result<TensorData, StrategyError> {
        let dtype = value.dtype();
        let like = PartShape { shape: value.dims().to_vec(), dtype, sum: dtype };
        let whole = (self.world.rank() == 0).then(|| on_host(value.clone()));
        let Some(rows) = self.rows(id) else { return Ok(self.world.broadcast_part(what, whole, like, 0)?) };
        let mut shape = like.shape.clone();
        shape[0] = rows.per_rank();
        let scatter = || self.sharing.scatter(what, whole, like, 0).map(|own| rows.shard(own));
        let Some(copies) = &self.copies else { return Ok(scatter()?) };
        let own = (copies.rank() == 0).then(scatter).transpose()?;
        Ok(copies.broadcast_part(what, own, PartShape { shape, dtype, sum: dtype }, 0)?)
    }

    /// Gathers each sharded parameter for which `wanted` holds.
    pub fn gather<M: Module>(
        &self,
        model: M,
        what: &str,
        wanted: impl Fn(ParamId) -> bool,
    ) -> Result<M, StrategyError> {
        self.gather_to(model, what, wanted, None)
    }

    /// Like [`gather`](Self::gather), onto `device`, or onto each shard's device if `None`.
    fn gather_to<M: Module>(
        &self,
        model: M,
        what: &str,
        wanted: impl Fn(ParamId) -> bool,
        device: Option<Device>,
    ) -> Result<M, StrategyError> {
        let whole = self.gather_flat(&model, what, wanted, device.clone())?;
        Ok(self.put(model, whole, device))
    }

    /// Gathers each sharded parameter for which `wanted` holds, flat and with its padding, onto `device`, or onto each
    /// shard's device if `None`.
    pub(crate) fn gather_flat<M: Module>(
        &self,
        model: &M,
        what: &str,
        wanted: impl Fn(ParamId) -> bool,
        device: Option<Device>,
    ) -> Result<HashMap<ParamId, Tensor<1>>, StrategyError> {
        let shards = shards(model, |id| self.shards(id) && wanted(id));
        let mut whole = HashMap::new();
        let mut under_way = None;
        for bucket in self.buckets(&shards) {
            let to = device.clone().unwrap_or_else(|| bucket[0].1.device());
            if let Some(earlier) = under_way.replace(self.begin_gather(what, bucket.to_vec(), &to)?) {
                whole.extend(Gathers::wait(earlier)?);
            }
        }
        if let Some(last) = under_way {
            whole.extend(last.wait()?);
        }
        Ok(whole)
    }

    /// Puts gathered parameters, each flat and with its padding, in place of the shards: onto `device`, or onto each
    /// shard's device if `None`.
    pub(crate) fn put<M: Module>(
        &self,
        model: M,
        whole: HashMap<ParamId, Tensor<1>>,
        device: Option<Device>,
    ) -> M {
        map_params(model, &mut Put { rows: &self.rows, whole, device })
    }

    /// Splits flat shards into buckets, by the bytes of the whole parameters.
    pub(super) fn buckets<'a>(&self, shards: &'a [(ParamId, Tensor<1>)]) -> Vec<&'a [(ParamId, Tensor<1>)]> {
        buckets(shards, self.bucket, |shard| bytes(shard) * self.sharing.size())
    }

    /// Returns whether shards of these dtypes are gathered from a rank's device, instead of from host memory.
    pub(crate) fn gathers_on(&self, device: &Device, mut dtypes: impl Iterator<Item = DType>) -> bool {
        dtypes.all(|dtype| self.sharing.exchanges_on(device, dtype))
    }

    /// Begins to gather shards, each flat, onto the device `to`.
    pub fn begin_gather(
        &self,
        what: &str,
        shards: Vec<(ParamId, Tensor<1>)>,
        to: &Device,
    ) -> Result<Gathers, StrategyError> {
        let begin = |bucket: &[(ParamId, Tensor<1>)]| {
            let shards = bucket.iter().map(|(_, shard)| shard.clone());
            self.sharing.begin_all_gather(what, shards.collect(), to)
        };
        let each = self.buckets(&shards).into_iter().map(begin).collect::<Result<_, _>>()?;
        Ok(Gathers { ids: shards.into_iter().map(|(id, _)| id).collect(), coming: Coming::Each(each) })
    }

    /// Gathers each sharded parameter in host memory, on `root` alone or on every rank. No device holds more of the
    /// model than before.
    pub fn whole<M: Module>(&self, model: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        if self.world.size() == 1 {
            return Ok(Some(model));
        }
        let host = host_device();
        let Some(root) = root else {
            return Ok(Some(self.gather_to(model, "the whole model", |_| true, Some(host))?));
        };
        // The ranks of one copy have all of it.
        if self.world.rank() / self.sharing.size() != root / self.sharing.size() {
            return Ok(None);
        }
        let root = root % self.sharing.size();
        let shards = shards(&model, |id| self.shards(id));
        let mut whole = HashMap::new();
        for bucket in self.buckets(&shards) {
            let (ids, shards): (Vec<_>, Vec<_>) =
                bucket.iter().map(|(id, shard)| (*id, shard.clone().into_dispatch())).unzip();
            if let Some(parts) = self.sharing.gather("the whole model", all_on_host(shards), root)? {
                let flat = parts.into_iter().map(|part| {
                    let dtype = part.dtype();
                    Tensor::from_data(part, (&host, dtype))
                });
                whole.extend(std::iter::zip(ids, flat));
            }
        }
        if self.sharing.rank() != root {
            return Ok(None);
        }
        Ok(Some(self.put(model, whole, Some(host))))
    }
}

/// Gathers in flight.
#[derive(Debug)]
pub struct Gathers {
    ids: Vec<ParamId>,
    coming: Coming,
}

#[derive(Debug)]
enum Coming {
    /// Each of a bucket.
    Each(Vec<Gathering>),
    Together(Uploading),
}

impl Gathers {
    /// Copies the parameters to a GPU, beside what it computes, if they pass through host memory.
    pub fn uploading(self) -> Self {
        let coming = match self.coming {
            Coming::Each(gathers) => Gathering::upload(gathers).map_or_else(Coming::Each, Coming::Together),
            together => together,
        };
        Self { coming, ..self }
    }

    /// Waits for the gathered parameters, each flat and with its padding.
    pub fn wait(self) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        let parts = match self.coming {
            Coming::Each(gathers) => {
                gathers.into_iter().map(Gathering::wait).collect::<Result<Vec<_>, _>>()?.concat()
            }
            Coming::Together(uploading) => uploading.wait()?,
        };
        Ok(std::iter::zip(self.ids, parts).collect())
    }
}

/// Returns the wanted parameters of a model, each once and flat.
pub(super) fn shards<M: Module>(model: &M, wanted: impl Fn(ParamId) -> bool) -> Vec<(ParamId, Tensor<1>)> {
    let mut shards = Vec::new();
    each_distinct_param(model, |param| {
        if wanted(param.id()) {
            shards.push((param.id(), param.flat()));
        }
    });
    shards
}

/// Puts gathered parameters in place of the shards.
struct Put<'a> {
    rows: &'a HashMap<ParamId, Rows>,
    /// Flat, with their padding.
    whole: HashMap<ParamId, Tensor<1>>,
    /// The target device, if not each shard's own.
    device: Option<Device>,
}

impl ParamMap for Put<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        let (Some(rows), Some(flat)) = (self.rows.get(&id), self.whole.remove(&id)) else { return value };
        let mut shape = value.dims();
        shape[0] = rows.padded();
        let device = self.device.clone().unwrap_or_else(|| value.device().inner());
        let padded: Tensor<D> = flat.to_device(&device).reshape(shape);
        let whole = if rows.is_padded() { padded.narrow(0, 0, rows.rows()) } else { padded };
        relift(whole, &value)
    }

    /// What was gathered has a value.
    fn wakes(&self, _: ParamId) -> bool {
        false
    }
}
