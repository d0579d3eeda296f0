//! Parameters on their way from the other ranks.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Tensor};
use firebrick_world::{Gathering, Uploading};

use super::Sharding;
use super::rows::Rows;
use crate::moving::{buckets, bytes};
use crate::{ParamMap, StrategyError, each_distinct_param, map_params, relift};

impl Sharding {
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
    pub(super) fn gather_to<M: Module>(
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
        map_params(model, &mut PutGathered { rows: &self.rows, whole, device })
    }

    /// Splits flat shards into buckets, by the bytes of the whole parameters.
    pub(crate) fn buckets<'a>(&self, shards: &'a [(ParamId, Tensor<1>)]) -> Vec<&'a [(ParamId, Tensor<1>)]> {
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
pub(crate) fn shards<M: Module>(model: &M, wanted: impl Fn(ParamId) -> bool) -> Vec<(ParamId, Tensor<1>)> {
    let mut shards = Vec::new();
    each_distinct_param(model, |param| {
        if wanted(param.id()) {
            shards.push((param.id(), param.flat()));
        }
    });
    shards
}

/// Puts gathered parameters in place of the shards.
struct PutGathered<'a> {
    rows: &'a HashMap<ParamId, Rows>,
    /// Flat, with their padding.
    whole: HashMap<ParamId, Tensor<1>>,
    /// The target device, if not each shard's own.
    device: Option<Device>,
}

impl ParamMap for PutGathered<'_> {
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
