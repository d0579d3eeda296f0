//! Distributes rank 0's model, and returns the whole model.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use firebrick_world::{PartShape, all_on_host, host_device, on_host};

use super::Sharding;
use super::gathers::shards;
use super::rows::Rows;
use crate::error::Faults;
use crate::params::{map_params_later, without_values};
use crate::{ParamMap, Paths, StrategyError, map_params, relift};

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

impl Sharding {
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
    pub(crate) fn divide_later<M: Module>(self: &Arc<Self>, model: M, device: &Device, faults: &Faults) -> M {
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
