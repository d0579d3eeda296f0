//! A master whose shards are views of the gathered parameters, so that they take no memory of their own.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::tensor::{DType, Device, Tensor};
use firebrick_world::{is_host, on_host};

use crate::{ParamMap, Sharding, relift};

/// Makes each shard a view of the whole parameter that was gathered from it.
pub(super) struct View<'a> {
    pub sharding: &'a Sharding,
    /// The gathered parameters, each flat and with its padding.
    pub padded: HashMap<ParamId, Tensor<1>>,
    /// The dtype and device of the replica's parameters. One that an earlier strategy has cast no longer is the gathered tensor.
    pub replica: HashMap<ParamId, (DType, Device)>,
}

impl ParamMap for View<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        let (Some(rows), Some(padded)) = (self.sharding.rows(id), self.padded.remove(&id)) else {
            return value;
        };
        let master = (value.dtype(), value.device().inner());
        if (padded.dtype(), padded.device()) != master || self.replica.get(&id) != Some(&master) {
            return value;
        }
        let [elements] = padded.dims();
        let each = elements / rows.padded() * rows.per_rank();
        let own = padded.narrow(0, self.sharding.rank() * each, each);
        relift(own.reshape(value.dims()), &value)
    }
}

/// Turns each view into a tensor of its own.
pub(super) struct Apart<'a>(pub &'a Sharding);

impl ParamMap for Apart<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        if !self.0.shards(id) {
            return value;
        }
        let (device, dtype) = (value.device().inner(), value.dtype());
        let apart = match is_host(&device) {
            true => Tensor::from_data(on_host(value.clone()), (&device, dtype)),
            // A result of its own, since the view shares its memory.
            false => value.clone().inner().mul_scalar(1.0),
        };
        relift(apart, &value)
    }
}
