//! The parameters of blocks on a disk.
//!
//! In a model, such a parameter has no value: Burn calls it lazy. Its initializer reads the value that the parameter had when
//! the initializer was made: later updates write to another place as long as something may still read this one. So it is
//! correct wherever it is read, at the cost of memory.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, Param, ParamId, ParamMapper};
use burn::tensor::{Bytes, DType, Device, Shape, Tensor, TensorData};
use firebrick_kernels::memory::Inherited;
use firebrick_strategies::{OffloadedParam, OffloadedParams, OffloadedRead, Paths, StrategyError};
use firebrick_world::{host_device, on_host};

use super::stand_in::{lifted, stand_in};
use super::{ScratchError, ScratchFile, Stored, TensorInMemory, Unwritten};
use crate::beside::Beside;

/// Which values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Master,
    Replica,
}

/// The parameters of blocks in the file of a rank: the master's values, and the replica's where these differ.
#[derive(Debug)]
pub(crate) struct DiskParams {
    file: Arc<ScratchFile>,
    params: Mutex<HashMap<ParamId, Waiting>>,
    failure: Failure,
}

/// The first error of a read outside an update.
type Failure = Arc<Mutex<Option<ScratchError>>>;

/// A parameter that waits.
#[derive(Debug)]
struct Waiting {
    path: String,
    /// Of the whole parameter, or of this rank's shard.
    shape: Shape,
    is_trained: bool,
    /// The [`ParamMapper`] of a tensor of its rank.
    mapper: Arc<dyn Any + Send + Sync>,
    /// `None` only while it is written.
    master: Option<Arc<Stored>>,
    /// `None` if these are the master's values.
    replica: Option<Arc<Stored>>,
}

impl Waiting {
    fn stored(&self, values: Values) -> Option<&Arc<Stored>> {
        match values {
            Values::Master => self.master.as_ref(),
            Values::Replica => self.replica.as_ref().or(self.master.as_ref()),
        }
    }

    /// Adds a replica to what is to be written, unless it is the master.
    fn replace_replica(
        &mut self,
        master: &TensorData,
        replica: Tensor<1>,
        id: ParamId,
        (written, buckets): (&mut Written, &mut Vec<Unwritten>),
    ) {
        let data = on_host(replica);
        if data.dtype() == master.dtype() && data.as_bytes() == master.as_bytes() {
            self.replica = None;
            return;
        }
        let before = self.replica.take();
        written.push((id, Values::Replica));
        buckets.push(self.unwritten("the replica", before, data));
    }

    fn unwritten(&self, values: &str, before: Option<Arc<Stored>>, data: TensorData) -> Unwritten {
        let (bytes, shape, dtype) = data.into_parts();
        let tensors = vec![TensorInMemory { name: values.into(), dtype, shape, bytes }];
        Unwritten { name: format!("`{}`", self.path), before, tensors }
    }
}

/// New values of a parameter.
pub(crate) struct NewValues {
    pub id: ParamId,
    pub master: TensorData,
    /// Flat; `None` if the replica is as it was.
    pub replica: Option<Tensor<1>>,
}

/// Which values of which parameter are being written, in the order of the buckets.
pub(crate) type Written = Vec<(ParamId, Values)>;

impl DiskParams {
    /// Writes the parameters of a model that are `wanted` to the file, one by one, and returns the model without their
    /// values.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn offload<M: Module>(
        file: &Arc<ScratchFile>,
        model: M,
        wanted: impl Fn(ParamId) -> bool,
    ) -> Result<(Arc<Self>, M), ScratchError> {
        struct OffloadEach<'a, F>(&'a DiskParams, &'a Paths, F, Result<(), ScratchError>);
        impl<F: Fn(ParamId) -> bool> ModuleMapper for OffloadEach<'_, F> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Self(offloaded, paths, wanted, result) = self;
                let id = param.id;
                if result.is_err() || offloaded.has(id) || !wanted(id) {
                    // Initial values are drawn in the order of the model, wherever they go.
                    param.base();
                    return param;
                }
                let (_, value, mapper) = param.consume();
                let path = paths.path(id).map_or_else(|| id.to_string(), str::to_string);
                let is_trained = value.is_require_grad();
                let left = stand_in(value.dims(), &value.device(), value.dtype(), is_trained);
                let waiting = Waiting {
                    path,
                    shape: value.shape(),
                    is_trained,
                    mapper: Arc::new(mapper.clone()),
                    master: None,
                    replica: None,
                };
                lock(&offloaded.params).insert(id, waiting);
                *result = offloaded.put(vec![NewValues { id, master: on_host(value), replica: None }]);
                Param::from_mapped_value(id, left, mapper)
            }
        }
        let offloaded = Self { file: file.clone(), params: Mutex::default(), failure: Failure::default() };
        let paths = Paths::of(&model);
        let mut offload = OffloadEach(&offloaded, &paths, wanted, Ok(()));
        let model = model.map(&mut offload);
        offload.3?;
        let offloaded = Arc::new(offloaded);
        let model = offloaded.renewed(model, Values::Master, |_| true);
        Ok((offloaded, model))
    }

    /// Returns whether a parameter waits in the file.
    pub fn has(&self, id: ParamId) -> bool {
        lock(&self.params).contains_key(&id)
    }

    /// Returns the values of a parameter as they are now. Later updates do not change them.
    pub fn stored(&self, id: ParamId, values: Values) -> Option<Arc<Stored>> {
        lock(&self.params).get(&id)?.stored(values).cloned()
    }

    /// Returns the bytes of all values.
    pub fn bytes(&self) -> usize {
        let params = lock(&self.params);
        let stored = params.values().flat_map(|waiting| waiting.master.iter().chain(&waiting.replica));
        stored.flat_map(|stored| &stored.tensors).map(|tensor| tensor.bytes).sum()
    }

    /// Returns the first error of a read outside an update, once.
    ///
    /// # Errors
    ///
    /// The disk has failed, or has returned other bytes than were written.
    pub fn check(&self) -> Result<(), ScratchError> {
        lock(&self.failure).take().map_or(Ok(()), Err)
    }

    /// Writes new values of some parameters.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn put(&self, values: Vec<NewValues>) -> Result<(), ScratchError> {
        let (written, buckets) = self.begin_write(values);
        self.end_write(written, Stored::write(&self.file, buckets)?);
        Ok(())
    }

    /// Writes the published values of parameters with these masters, each flat, unless they are the same.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn put_replicas(
        &self,
        masters: Vec<(ParamId, Tensor<1>)>,
        published: Vec<(ParamId, Tensor<1>)>,
    ) -> Result<(), ScratchError> {
        let mut published: HashMap<_, _> = published.into_iter().collect();
        let (mut written, mut buckets) = (Vec::new(), Vec::new());
        {
            let mut params = lock(&self.params);
            for (id, master) in masters {
                let (Some(waiting), Some(replica)) = (params.get_mut(&id), published.remove(&id)) else {
                    continue;
                };
                waiting.replace_replica(&on_host(master), replica, id, (&mut written, &mut buckets));
            }
        }
        self.end_write(written, Stored::write(&self.file, buckets)?);
        Ok(())
    }

    /// Prepares new values to be written, in the place of those before. Until [`end_write`](Self::end_write), the
    /// parameters cannot be read.
    pub fn begin_write(&self, all: Vec<NewValues>) -> (Written, Vec<Unwritten>) {
        let (mut written, mut buckets) = (Vec::new(), Vec::new());
        let mut params = lock(&self.params);
        for NewValues { id, master, replica } in all {
            let Some(waiting) = params.get_mut(&id) else { continue };
            if let Some(replica) = replica {
                waiting.replace_replica(&master, replica, id, (&mut written, &mut buckets));
            }
            let before = waiting.master.take();
            written.push((id, Values::Master));
            buckets.push(waiting.unwritten("the master", before, master));
        }
        (written, buckets)
    }

    /// Takes what has been written.
    pub fn end_write(&self, written: Written, stored: impl IntoIterator<Item = Stored>) {
        let mut params = lock(&self.params);
        for ((id, values), stored) in std::iter::zip(written, stored) {
            let Some(waiting) = params.get_mut(&id) else { continue };
            let place = match values {
                Values::Master => &mut waiting.master,
                Values::Replica => &mut waiting.replica,
            };
            *place = Some(Arc::new(stored));
        }
    }

    /// Reads the master's values of some parameters, each flat, on the host and outside autodiff.
    ///
    /// # Errors
    ///
    /// The disk has failed, or has returned other bytes than were written.
    pub fn read_masters(&self, ids: &[ParamId]) -> Result<Vec<(ParamId, Tensor<1>)>, ScratchError> {
        let stored = ids.iter().filter_map(|id| Some((*id, self.stored(*id, Values::Master)?)));
        let (ids, stored): (Vec<_>, Vec<_>) = stored.unzip();
        Ok(std::iter::zip(ids, flat(&stored, read(&stored)?)).collect())
    }

    /// Creates a parameter whose value is read when something asks for it. `None` if it does not wait here.
    pub(super) fn lazy<const D: usize>(
        &self,
        id: ParamId,
        values: Values,
        device: Device,
    ) -> Option<Param<Tensor<D>>> {
        let params = lock(&self.params);
        let waiting = params.get(&id)?;
        let stored = waiting.stored(values)?.clone();
        let (failure, shape) = (self.failure.clone(), waiting.shape.clone());
        let of_value = shape.clone();
        let value = move |device: &Device, requires_grad: bool| {
            let read = read(std::slice::from_ref(&stored)).unwrap_or_else(|error| {
                lock(&failure).get_or_insert(error);
                vec![vec![0; stored.tensors[0].bytes]]
            });
            let (bytes, dtype) = (read.into_iter().next().unwrap_or_default(), stored.tensors[0].dtype);
            let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), of_value, dtype);
            let value = Tensor::<D>::from_data(data, (&device.clone().inner(), dtype));
            lifted(value, device).set_require_grad(requires_grad)
        };
        let param = Param::uninitialized(id, value, device, waiting.is_trained, shape);
        Some(match waiting.mapper.clone().downcast::<ParamMapper<Tensor<D>>>() {
            Err(_) => param,
            Ok(mapper) => {
                let load = mapper.clone();
                param
                    .load_mapper(move |value| load.on_load(value))
                    .save_mapper(move |value| mapper.on_save(value))
            }
        })
    }

    /// Returns dtype and setting of a parameter.
    pub(super) fn dtype(&self, id: ParamId, values: Values) -> Option<(DType, bool)> {
        let params = lock(&self.params);
        let waiting = params.get(&id)?;
        Some((waiting.stored(values)?.tensors[0].dtype, waiting.is_trained))
    }
}

impl OffloadedParams for DiskParams {
    fn param(&self, id: ParamId) -> Option<OffloadedParam> {
        let params = lock(&self.params);
        let waiting = params.get(&id)?;
        let tensor = &waiting.stored(Values::Replica)?.tensors[0];
        let (shape, dtype, is_trained) = (waiting.shape.to_vec(), tensor.dtype, waiting.is_trained);
        Some(OffloadedParam { shape, dtype, is_trained })
    }

    fn begin_read(&self, ids: &[ParamId]) -> OffloadedRead {
        let stored: Vec<_> = ids.iter().filter_map(|id| self.stored(*id, Values::Replica)).collect();
        let (failure, account) = (self.failure.clone(), Inherited::of_this_thread());
        let reading = Beside::start(move || {
            let _on_it = account.enter();
            let read = read(&stored);
            (stored, read)
        });
        OffloadedRead::new(move || {
            let (stored, read) = reading.wait();
            match read {
                Ok(read) => Ok(flat(&stored, read)),
                Err(error) => {
                    let text = error.to_string();
                    lock(&failure).get_or_insert(error);
                    Err(StrategyError::OffloadedParam(text))
                }
            }
        })
    }
}

fn read(stored: &[Arc<Stored>]) -> Result<Vec<Vec<u8>>, ScratchError> {
    Stored::read(&stored.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

/// Returns what was read as flat tensors on the host.
fn flat(stored: &[Arc<Stored>], read: Vec<Vec<u8>>) -> Vec<Tensor<1>> {
    let host = host_device();
    let one = |(stored, bytes): (&Arc<Stored>, Vec<u8>)| {
        let tensor = &stored.tensors[0];
        let shape = Shape::from([tensor.shape.num_elements()]);
        let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, tensor.dtype);
        Tensor::from_data(data, (&host, tensor.dtype))
    };
    std::iter::zip(stored, read).map(one).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
