//! Divides a model's parameters among the ranks and gathers them again.

use std::collections::HashMap;
use std::fmt;

use burn::backend::DispatchTensor;
use burn::module::{Module, ParamId};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use firebrick_world::{Communicator, Gathering, PartShape, host_device, numbers, on_host};

use super::rows::Rows;
use crate::{ParamMap, Reduces, StrategyError, each_distinct_param, each_param, map_params, relift};

/// Bytes in flight at once: large enough to use a network well, and small beside a model.
const BUCKET_BYTES: usize = 16 << 20;

/// Which parameters are sharded, and among which ranks.
pub struct Sharding {
    pub(super) world: Communicator,
    /// The rows of each sharded parameter.
    rows: HashMap<ParamId, Rows>,
    /// The dtype in which gradients travel, if not their own.
    pub(super) wire: Option<FloatDType>,
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({} parameters among {} ranks)", self.rows.len(), self.world.size())
    }
}

impl Sharding {
    /// Shards the parameters that [`Reduces::padded_rows`] says.
    pub fn of<M: Module>(model: &M, world: Communicator, reduces: &Reduces) -> Self {
        let (mut rows, ranks) = (HashMap::new(), world.size());
        each_param(model, |param| {
            let shape = param.shape();
            if reduces.padded_rows(&shape, param.learns(), ranks).is_some() {
                rows.insert(param.id(), Rows::of(shape[0], ranks));
            }
        });
        Self { world, rows, wire: reduces.sum_in }
    }

    /// Returns the ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Returns whether this parameter is sharded.
    pub fn shards(&self, id: ParamId) -> bool {
        self.rows.contains_key(&id)
    }

    /// Returns the rows that each rank holds of a parameter, if it is sharded.
    pub fn rows(&self, id: ParamId) -> Option<Rows> {
        self.rows.get(&id).copied()
    }

    /// Sums one number of each rank, in rank order, so that all ranks get the same result.
    pub fn sum_of(&self, number: Tensor<1>) -> Result<Tensor<1>, StrategyError> {
        let device = number.device();
        let mine = numbers(vec![number]).map_err(|error| StrategyError::Read(error.to_string()))?;
        let sum: f64 = self.world.numbers("the norm of the gradients", &mine)?.iter().flatten().sum();
        Ok(Tensor::from_data([sum as f32], &device))
    }

    /// Distributes rank 0's model: returns the model with this rank's part on `device`. Goes parameter by parameter
    /// through host memory, so that the device never holds more than this rank's part.
    pub fn divide<M: Module>(&self, model: M, device: &Device) -> Result<M, StrategyError> {
        struct Divide<'a>(&'a Sharding, &'a Device, Result<(), StrategyError>);
        impl ParamMap for Divide<'_> {
            fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
                if self.2.is_err() {
                    return value;
                }
                match self.0.own(id, &value) {
                    Ok(own) => {
                        let dtype = own.dtype();
                        relift(Tensor::from_data(own, (self.1, dtype)), &value)
                    }
                    Err(error) => {
                        self.2 = Err(error);
                        value
                    }
                }
            }
        }
        let mut divide = Divide(self, device, Ok(()));
        let model = map_params(model, &mut divide);
        divide.2.map(|()| model)
    }

    /// Returns this rank's part of rank 0's parameter.
    fn own<const D: usize>(&self, id: ParamId, value: &Tensor<D>) -> Result<TensorData, StrategyError> {
        let dtype = value.dtype();
        let like = PartShape { shape: value.dims().to_vec(), dtype, sum: dtype };
        let whole = (self.world.rank() == 0).then(|| on_host(value.clone()));
        Ok(match self.rows(id) {
            None => self.world.broadcast_part("", whole, like, 0)?,
            Some(rows) => rows.shard(self.world.scatter("", whole, like, 0)?),
        })
    }

    /// Gathers each sharded parameter for which `wanted` holds. Returns the model and the gathered tensors with their
    /// padding.
    pub fn gather<M: Module>(
        &self,
        model: M,
        what: &str,
        wanted: impl Fn(ParamId) -> bool,
    ) -> Result<Gathered<M>, StrategyError> {
        self.gather_to(model, what, wanted, None)
    }

    /// Like [`gather`](Self::gather), onto `device`, or onto each shard's device if `None`.
    fn gather_to<M: Module>(
        &self,
        model: M,
        what: &str,
        wanted: impl Fn(ParamId) -> bool,
        device: Option<Device>,
    ) -> Result<Gathered<M>, StrategyError> {
        let shards = Shards::of(&model, |id| self.shards(id) && wanted(id));
        let mut whole = HashMap::new();
        let mut under_way = None;
        for bucket in shards.buckets() {
            let (ids, data): (Vec<_>, Vec<_>) = shards.read(&model, bucket).into_iter().unzip();
            let next = (ids, self.world.start_all_gather(what, data)?);
            if let Some((ids, gathering)) = under_way.replace(next) {
                whole.extend(std::iter::zip(ids, wait(gathering)?));
            }
        }
        if let Some((ids, gathering)) = under_way {
            whole.extend(std::iter::zip(ids, wait(gathering)?));
        }
        let mut put = Put { rows: &self.rows, whole, padded: HashMap::new(), device };
        let model = map_params(model, &mut put);
        Ok(Gathered { model, padded: put.padded })
    }

    /// Gathers each sharded parameter in host memory, on `root` alone or on every rank. No device holds more of the
    /// model than before.
    pub fn whole<M: Module>(&self, model: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        if self.world.size() == 1 {
            return Ok(Some(model));
        }
        let host = host_device();
        let Some(root) = root else {
            return Ok(Some(self.gather_to(model, "the whole model", |_| true, Some(host))?.model));
        };
        let shards = Shards::of(&model, |id| self.shards(id));
        let mut whole = HashMap::new();
        for bucket in shards.buckets() {
            let (ids, data): (Vec<_>, Vec<_>) = shards.read(&model, bucket).into_iter().unzip();
            if let Some(parts) = self.world.gather("the whole model", data, root)? {
                whole.extend(std::iter::zip(ids, parts));
            }
        }
        if self.world.rank() != root {
            return Ok(None);
        }
        let mut put = Put { rows: &self.rows, whole, padded: HashMap::new(), device: Some(host) };
        Ok(Some(map_params(model, &mut put)))
    }
}

fn wait(gathering: Gathering) -> Result<Vec<TensorData>, StrategyError> {
    Ok(gathering.wait()?)
}

/// A model with gathered parameters.
pub struct Gathered<M> {
    /// The model.
    pub model: M,
    /// The gathered tensors, with their padding.
    pub padded: HashMap<ParamId, DispatchTensor>,
}

/// The wanted parameters of a model, each once, with their bytes.
struct Shards(Vec<(ParamId, usize)>);

impl Shards {
    fn of<M: Module>(model: &M, wanted: impl Fn(ParamId) -> bool) -> Self {
        let mut shards = Vec::new();
        each_distinct_param(model, |param| {
            if wanted(param.id()) {
                shards.push((param.id(), param.bytes()));
            }
        });
        Self(shards)
    }

    /// Splits them into runs of about [`BUCKET_BYTES`] each.
    fn buckets(&self) -> Vec<&[(ParamId, usize)]> {
        buckets(&self.0, |(_, bytes)| *bytes)
    }

    fn read<M: Module>(&self, model: &M, bucket: &[(ParamId, usize)]) -> Vec<(ParamId, TensorData)> {
        let mut read: HashMap<_, _> = bucket.iter().map(|(id, _)| (*id, None)).collect();
        each_param(model, |param| {
            if let Some(data @ None) = read.get_mut(&param.id()) {
                *data = Some(param.to_host());
            }
        });
        bucket.iter().filter_map(|(id, _)| Some((*id, read.remove(id)??))).collect()
    }
}

/// Splits items into runs of neighbours of about [`BUCKET_BYTES`] each.
pub(super) fn buckets<T>(all: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut sum = 0;
    let mut runs = Vec::new();
    let mut start = 0;
    for (end, item) in all.iter().enumerate() {
        if sum > 0 && sum + bytes(item) > BUCKET_BYTES {
            runs.push(&all[start..end]);
            (start, sum) = (end, 0);
        }
        sum += bytes(item);
    }
    if start < all.len() {
        runs.push(&all[start..]);
    }
    runs
}

/// Puts gathered parameters in place of the shards.
struct Put<'a> {
    rows: &'a HashMap<ParamId, Rows>,
    whole: HashMap<ParamId, TensorData>,
    padded: HashMap<ParamId, DispatchTensor>,
    /// The target device, if not each shard's own.
    device: Option<Device>,
}

impl ParamMap for Put<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        let (Some(rows), Some(data)) = (self.rows.get(&id), self.whole.remove(&id)) else { return value };
        let dtype = data.dtype();
        let device = self.device.clone().unwrap_or_else(|| value.device().inner());
        let padded = Tensor::<D>::from_data(data, (&device, dtype));
        self.padded.insert(id, padded.clone().into_dispatch());
        let whole = if rows.is_padded() { padded.narrow(0, 0, rows.rows()) } else { padded };
        relift(whole, &value)
    }
}
