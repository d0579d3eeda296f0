//! How the parameters of a model are divided among the ranks, and what they say to one another.

use std::collections::{HashMap, HashSet};
use std::fmt;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::rows::Rows;
use crate::host::{host_device, on_host};
use crate::world::{Communicator, PartShape};
use crate::{ParamMap, StrategyError, learns, map_params, relift};

/// Bytes that are under way at once: large enough that a network is used well, and small beside a model.
const BUCKET_BYTES: usize = 16 << 20;

/// Which parameters are sharded, and among whom.
pub(crate) struct Sharding {
    pub(super) world: Communicator,
    /// Of each sharded parameter.
    rows: HashMap<ParamId, Rows>,
    /// Gradients are summed in this dtype, or in their own.
    pub(super) wire: Option<FloatDType>,
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({} parameters among {} ranks)", self.rows.len(), self.world.size())
    }
}

impl Sharding {
    /// Shards each parameter of at least `smallest` elements, and as many rows as there are ranks; with
    /// `trained` only those that have a gradient: where the replica is whole, the others have nothing to
    /// share.
    pub fn of<M: Module>(
        model: &M,
        world: Communicator,
        smallest: usize,
        trained: bool,
        wire: Option<FloatDType>,
    ) -> Self {
        struct Shapes {
            rows: HashMap<ParamId, Rows>,
            smallest: usize,
            ranks: usize,
            trained: bool,
        }
        impl ModuleVisitor for Shapes {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let shape = param.lazy_shape();
                let large = D > 0 && shape.num_elements() >= self.smallest && shape[0] >= self.ranks;
                if large && (!self.trained || learns(param)) {
                    self.rows.insert(param.id, Rows::of(shape[0], self.ranks));
                }
            }
        }
        let (smallest, ranks) = (smallest.max(1), world.size());
        let mut shapes = Shapes { rows: HashMap::new(), smallest, ranks, trained };
        model.visit(&mut shapes);
        Self { world, rows: shapes.rows, wire }
    }

    /// Nothing is sharded: every rank holds everything.
    pub fn none(world: Communicator, wire: Option<FloatDType>) -> Self {
        Self { world, rows: HashMap::new(), wire }
    }

    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Whether ranks share this parameter.
    pub fn shards(&self, id: ParamId) -> bool {
        self.rows.contains_key(&id)
    }

    pub fn rows(&self, id: ParamId) -> Option<Rows> {
        self.rows.get(&id).copied()
    }

    /// A number of each rank, summed in the order of ranks, so that all have the same.
    pub fn sum_of(&self, number: Tensor<1>) -> Result<Tensor<1>, StrategyError> {
        let device = number.device();
        let mine = number.try_into_scalar::<f64>().map_err(|error| StrategyError::Read(error.to_string()))?;
        let sum: f64 = self.world.numbers("the norm of the gradients", &[mine])?.iter().flatten().sum();
        Ok(Tensor::from_data([sum as f32], &device))
    }

    /// The model as this rank is to hold it on `device`, from rank 0's numbers: parameter by parameter,
    /// through the host's memory, so that nothing but this rank's part is ever on the device.
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

    /// This rank's part of a parameter, of rank 0's numbers.
    fn own<const D: usize>(&self, id: ParamId, value: &Tensor<D>) -> Result<TensorData, StrategyError> {
        let dtype = value.dtype();
        let like = PartShape { shape: value.dims().to_vec(), dtype, sum: dtype };
        let whole = (self.world.rank() == 0).then(|| on_host(value.clone()));
        Ok(match self.rows(id) {
            None => self.world.broadcast_part("", whole, like, 0)?,
            Some(rows) => rows.shard(self.world.scatter("", whole, like, 0)?),
        })
    }

    /// The model with each sharded parameter for which `wanted` holds gathered, and what was gathered
    /// with its padding.
    pub fn gather<M: Module>(
        &self,
        model: M,
        what: &str,
        wanted: impl Fn(ParamId) -> bool,
    ) -> Result<Gathered<M>, StrategyError> {
        self.gather_to(model, what, wanted, None)
    }

    /// The same on a device, or where each shard is.
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

    /// The model with each sharded parameter whole again, in the host's memory: on `root` alone, or everywhere. No
    /// device holds more of it than before.
    pub fn whole<M: Module>(&self, model: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        if self.world.size() == 1 {
            return Ok(Some(model));
        }
        let host = host_device();
        let Some(root) = root else {
            return Ok(Some(self.gather_to(model, "the whole model", |_| true, host)?.model));
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
        let mut put = Put { rows: &self.rows, whole, padded: HashMap::new(), device: host };
        Ok(Some(map_params(model, &mut put)))
    }
}

fn wait(gathering: crate::world::Gathering) -> Result<Vec<TensorData>, StrategyError> {
    Ok(gathering.wait()?)
}

/// A model with parameters gathered.
pub(crate) struct Gathered<M> {
    pub model: M,
    /// The same tensors, with their padding.
    pub padded: HashMap<ParamId, DispatchTensor>,
}

/// The parameters of a model that are wanted, each once, with their bytes.
struct Shards(Vec<(ParamId, usize)>);

impl Shards {
    fn of<M: Module>(model: &M, wanted: impl Fn(ParamId) -> bool) -> Self {
        struct Find<F>(F, HashSet<ParamId>, Vec<(ParamId, usize)>);
        impl<F: Fn(ParamId) -> bool> ModuleVisitor for Find<F> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if (self.0)(param.id) && self.1.insert(param.id) {
                    let value = param.base();
                    self.2.push((param.id, value.shape().num_elements() * value.dtype().size()));
                }
            }
        }
        let mut find = Find(wanted, HashSet::new(), Vec::new());
        model.visit(&mut find);
        Self(find.2)
    }

    /// Runs of them of about so many bytes.
    fn buckets(&self) -> Vec<&[(ParamId, usize)]> {
        buckets(&self.0, |(_, bytes)| *bytes)
    }

    fn read<M: Module>(&self, model: &M, bucket: &[(ParamId, usize)]) -> Vec<(ParamId, TensorData)> {
        struct Read(HashMap<ParamId, Option<TensorData>>);
        impl ModuleVisitor for Read {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(data @ None) = self.0.get_mut(&param.id) {
                    *data = Some(on_host(param.base()));
                }
            }
        }
        let mut read = Read(bucket.iter().map(|(id, _)| (*id, None)).collect());
        model.visit(&mut read);
        bucket.iter().filter_map(|(id, _)| Some((*id, read.0.remove(id)??))).collect()
    }
}

/// Runs of neighbours of about [`BUCKET_BYTES`] each.
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

/// Puts what was gathered in the place of the shards.
struct Put<'a> {
    rows: &'a HashMap<ParamId, Rows>,
    whole: HashMap<ParamId, TensorData>,
    padded: HashMap<ParamId, DispatchTensor>,
    /// Where to, if not where the shards are.
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
