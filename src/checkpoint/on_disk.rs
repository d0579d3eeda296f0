//! The optimizer's state on a disk: an update has the states of a few buckets of parameters in memory.
//!
//! A [`ModelOptimizer`] keeps the states of all parameters that it has updated. Here it is empty between two updates.
//! An update steps through the parameters in buckets, in the order of the model. For each bucket it loads the bucket's
//! states, takes an ordinary step with the gradients of the bucket alone, and takes the states back. Another
//! thread reads the next bucket meanwhile, and a third one writes the one before.
//!
//! | in memory at once, in buckets of state | read ahead | in the optimizer | taken out | written |
//! |---|---|---|---|---|
//! | during the step of a bucket | 1 | 1 | | 1 |
//! | while its states are taken | 1 | 1, then 0 | 1 | 0 |

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bytes, Tensor, TensorData};
use firebrick_kernels::memory::Inherited;
use firebrick_strategies::AnyParam;
use firebrick_strategies::optim::{ModelOptimizer, OptimizerStates};
use firebrick_world::host_device;

use super::layout::AXES;
use super::state_size::StateSize;
use crate::beside::Beside;
use crate::scratch::{
    DiskParams, NewValues, ScratchError, ScratchFile, Stored, TensorInMemory, Unwritten, Written,
};

/// The states of a rank's parameters, in a file.
pub(crate) struct OnDisk {
    file: Arc<ScratchFile>,
    /// The most bytes of parameters in a bucket, unless one alone has more.
    bucket_bytes: usize,
    buckets: Vec<Bucket>,
    /// The bucket of each parameter that has a state.
    of: HashMap<ParamId, usize>,
    failure: Option<ScratchError>,
    /// The parameters of blocks, if the file keeps them too.
    offloaded: Option<Arc<DiskParams>>,
}

/// The states of some parameters that are neighbours in the model.
#[derive(Default)]
struct Bucket {
    /// Bytes of these parameters.
    bytes: usize,
    tensors: Option<Arc<Stored>>,
    /// Everything of the states but the tensors.
    states: OptimizerStates,
}

/// The state as it is at a step boundary. Later updates do not change it.
pub(super) struct OnDiskNow {
    /// The tensors, by `ID.FIELD`.
    pub buckets: Vec<Arc<Stored>>,
    /// Everything else.
    pub states: OptimizerStates,
}

/// The bytes of a bucket's state, and the master's values of its parameters that wait, each flat.
type Read = (Vec<Vec<u8>>, Vec<(ParamId, Tensor<1>)>);
type Ahead = Beside<Result<Read, ScratchError>>;
/// The bucket; then its state and the values of its parameters that wait, while they are written.
type Behind = (usize, Written, Beside<Result<Vec<Stored>, ScratchError>>);
/// The published parameters of a part, each flat.
pub(crate) type Published = Vec<(ParamId, Tensor<1>)>;

impl OnDisk {
    /// Creates the file of a rank in a folder.
    ///
    /// # Errors
    ///
    /// The folder does not exist or cannot be written into.
    pub fn create(folder: &Path, bucket_bytes: usize, rank: usize) -> Result<Self, ScratchError> {
        let file = ScratchFile::create(folder, rank)?;
        let (buckets, of) = Default::default();
        Ok(Self { file, bucket_bytes, buckets, of, failure: None, offloaded: None })
    }

    /// Moves the state that the optimizer has of this model to the file.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn take_state<M: Module>(
        &mut self,
        optimizer: &mut ModelOptimizer,
        model: &M,
    ) -> Result<(), ScratchError> {
        for (bucket, params) in self.restart(model) {
            let params: HashSet<_> = params.into_iter().collect();
            self.store(bucket, optimizer.states(Some(&params)).map_err(unfit)?)?;
        }
        optimizer.load(OptimizerStates::new(), &host_device()).map_err(unfit)
    }

    /// Moves the parameters of a model that are `wanted` to the file, one by one. Returns the model without their values.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check).
    pub fn offload<M: Module>(
        &mut self,
        model: M,
        wanted: impl Fn(ParamId) -> bool,
    ) -> Result<(Arc<DiskParams>, M), ScratchError> {
        let (offloaded, model) = DiskParams::offload(&self.file, model, wanted)?;
        self.offloaded = Some(offloaded.clone());
        Ok((offloaded, model))
    }

    /// Returns the parameters that wait in the file, if any do.
    pub fn offloaded(&self) -> Option<&Arc<DiskParams>> {
        self.offloaded.as_ref()
    }

    /// Updates a model like [`ModelOptimizer::step`], which `update` does for one bucket of its parameters, and returns
    /// what it has published of the bucket. The model is an [outline](DiskParams::outline), before and afterwards. If the
    /// disk fails, the model comes back with a part of the update, and [`check`](Self::check) returns the error.
    pub fn step<M: Module>(
        &mut self,
        optimizer: &mut ModelOptimizer,
        mut model: M,
        grads: GradientsParams,
        mut update: impl FnMut(&mut ModelOptimizer, M, Part) -> (M, Published),
    ) -> M {
        if self.failure.is_some() {
            return model;
        }
        let parts = split(&model, grads, |param| self.bucket_of(param));
        let mut parts = parts.into_iter().peekable();
        let mut ahead = parts.peek().map(|(bucket, part)| self.read_ahead(*bucket, &part.params));
        let mut behind = None;
        while let Some((bucket, part)) = parts.next() {
            let read = ahead.take().map_or(Ok(Read::default()), Beside::wait);
            let loaded = read.and_then(|(state, values)| {
                self.load(bucket, state, optimizer)?;
                Ok(values)
            });
            let values = match loaded {
                Ok(values) => values,
                Err(error) => {
                    self.failure = Some(error);
                    break;
                }
            };
            ahead = parts.peek().map(|(next, part)| self.read_ahead(*next, &part.params));
            let params = part.params.clone();
            let (updated, new) = match self.offloaded.clone() {
                None => (update(optimizer, model, part).0, Vec::new()),
                Some(offloaded) => {
                    let filled = offloaded.put_into(model, values.into_iter().collect());
                    let (updated, published) = update(optimizer, filled, part);
                    let (outline, masters) = offloaded.take_from(updated, &params);
                    let mut published: HashMap<_, _> = published.into_iter().collect();
                    let new = |(id, master)| NewValues { id, master, replica: published.remove(&id) };
                    (outline, masters.into_iter().map(new).collect())
                }
            };
            model = updated;
            // Only then is there memory for the record.
            let ended = self.end_write(behind.take());
            match ended
                .and_then(|()| taken(optimizer))
                .and_then(|states| self.begin_write(bucket, states, new))
            {
                Ok(writing) => behind = Some(writing),
                Err(error) => {
                    self.failure = Some(error);
                    break;
                }
            }
        }
        if let Some(ahead) = ahead {
            ahead.end();
        }
        if let Err(error) = self.end_write(behind) {
            self.failure.get_or_insert(error);
        }
        model
    }

    /// Returns the error of the last [`step`](Self::step), or of a read since then.
    ///
    /// # Errors
    ///
    /// The disk has failed, is full, or returned other bytes than were written.
    pub fn check(&mut self) -> Result<(), ScratchError> {
        self.failure.take().map_or(Ok(()), Err)?;
        self.offloaded.as_ref().map_or(Ok(()), |offloaded| offloaded.check())
    }

    /// Moves the states of the parameters of a bucket onto the disk. Returns their size.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check).
    pub fn store(&mut self, bucket: usize, states: OptimizerStates) -> Result<StateSize, ScratchError> {
        let writing = self.begin_write(bucket, states, Vec::new())?;
        self.end_write(Some(writing))?;
        Ok(self.buckets[bucket].size())
    }

    /// Forgets all states, and returns the buckets of parameters for others, each with its number.
    pub fn restart<M: Module>(&mut self, model: &M) -> Vec<(usize, Vec<ParamId>)> {
        (self.buckets, self.of) = Default::default();
        let mut params = BTreeMap::<usize, Vec<ParamId>>::new();
        firebrick_strategies::each_distinct_param(model, |param| {
            params.entry(self.bucket_of(param)).or_default().push(param.id());
        });
        params.into_iter().collect()
    }

    /// Returns the size of the state.
    pub fn size(&self) -> StateSize {
        self.buckets.iter().map(Bucket::size).fold(StateSize::default(), |all, one| StateSize {
            tensors: all.tensors + one.tensors,
            bytes: all.bytes + one.bytes,
        })
    }

    /// Returns the bytes of the state, and of the parameters that wait.
    pub fn bytes(&self) -> [usize; 2] {
        [self.size().bytes, self.offloaded.as_ref().map_or(0, |offloaded| offloaded.bytes())]
    }

    /// Returns the file.
    pub fn file(&self) -> &ScratchFile {
        &self.file
    }

    /// Returns the state as it is now.
    pub(super) fn now(&self) -> OnDiskNow {
        let buckets = self.buckets.iter().filter_map(|bucket| bucket.tensors.clone()).collect();
        let states = self.buckets.iter().flat_map(|bucket| bucket.states.clone()).collect();
        OnDiskNow { buckets, states }
    }

    /// Returns the bucket of a parameter; a new parameter goes into the last one, if it has room.
    fn bucket_of(&mut self, param: &dyn AnyParam) -> usize {
        let Self { buckets, of, bucket_bytes, .. } = self;
        *of.entry(param.id()).or_insert_with(|| {
            let bytes = param.bytes();
            match buckets.last_mut() {
                Some(last) if last.bytes + bytes <= *bucket_bytes => last.bytes += bytes,
                _ => buckets.push(Bucket { bytes, ..Bucket::default() }),
            }
            buckets.len() - 1
        })
    }

    /// Begins to read the state of a bucket, if it has any, and those of its parameters that wait.
    fn read_ahead(&self, bucket: usize, params: &[ParamId]) -> Ahead {
        let (state, account) = (self.buckets[bucket].tensors.clone(), Inherited::of_this_thread());
        let (offloaded, params) = (self.offloaded.clone(), params.to_vec());
        Beside::start(move || {
            let _on_it = account.enter();
            let state = state.map_or(Ok(Vec::new()), |state| Stored::read(&[&state]))?;
            Ok((state, offloaded.map_or(Ok(Vec::new()), |offloaded| offloaded.read_masters(&params))?))
        })
    }

    /// Gives the optimizer the state of a bucket, whose tensors have these bytes.
    fn load(
        &self,
        bucket: usize,
        bytes: Vec<Vec<u8>>,
        optimizer: &mut ModelOptimizer,
    ) -> Result<(), ScratchError> {
        let Bucket { tensors, states, .. } = &self.buckets[bucket];
        let mut states = states.clone();
        let known = tensors.iter().flat_map(|stored| &stored.tensors);
        for (tensor, bytes) in known.zip(bytes) {
            let data =
                TensorData::from_bytes(Bytes::from_bytes_vec(bytes), tensor.shape.clone(), tensor.dtype);
            let (id, field) = parsed(&tensor.name)?;
            states.entry(id).or_default().tensors.push((field.into(), data));
        }
        optimizer.load(states, &host_device()).map_err(unfit)
    }

    /// Begins to write the states of a bucket with the new values of its parameters that wait.
    fn begin_write(
        &mut self,
        bucket: usize,
        mut states: OptimizerStates,
        values: Vec<NewValues>,
    ) -> Result<Behind, ScratchError> {
        let mut tensors = Vec::new();
        for (id, state) in &mut states {
            for (field, data) in state.tensors.drain(..) {
                let (bytes, shape, dtype) = data.into_parts();
                tensors.push(TensorInMemory { name: format!("{}.{field}", id.val()), dtype, shape, bytes });
            }
        }
        let place = &mut self.buckets[bucket];
        place.states = states;
        let (file, before) = (self.file.clone(), place.tensors.take());
        let mut buckets = vec![Unwritten { name: format!("bucket {bucket}"), before, tensors }];
        let (written, of_params) = match &self.offloaded {
            None => Default::default(),
            Some(offloaded) => offloaded.begin_write(values),
        };
        buckets.extend(of_params);
        let account = Inherited::of_this_thread();
        let writing = Beside::start(move || {
            let _on_it = account.enter();
            Stored::write(&file, buckets)
        });
        Ok((bucket, written, writing))
    }

    fn end_write(&mut self, behind: Option<Behind>) -> Result<(), ScratchError> {
        if let Some((bucket, written, writing)) = behind {
            let mut stored = writing.wait()?.into_iter();
            self.buckets[bucket].tensors = stored.next().map(Arc::new);
            if let Some(offloaded) = &self.offloaded {
                offloaded.end_write(written, stored);
            }
        }
        Ok(())
    }
}

impl Bucket {
    fn size(&self) -> StateSize {
        let tensors = self.tensors.iter().flat_map(|stored| &stored.tensors);
        tensors.fold(StateSize::default(), |size, tensor| StateSize {
            tensors: size.tensors + 1,
            bytes: size.bytes + tensor.bytes,
        })
    }
}

fn unfit(reason: impl ToString) -> ScratchError {
    ScratchError::State { reason: reason.to_string() }
}

/// Splits `ID.FIELD`.
fn parsed(name: &str) -> Result<(ParamId, &str), ScratchError> {
    let parsed =
        name.split_once('.').and_then(|(id, field)| Some((ParamId::from(id.parse::<u64>().ok()?), field)));
    parsed.ok_or_else(|| unfit(format!("expected a name such as `7.{AXES}`, found `{name}`")))
}

/// Takes the optimizer's states.
pub(super) fn taken(optimizer: &mut ModelOptimizer) -> Result<OptimizerStates, ScratchError> {
    let states = optimizer.states(None).map_err(unfit)?;
    optimizer.load(OptimizerStates::new(), &host_device()).map_err(unfit)?;
    Ok(states)
}

/// The gradients of some parameters, which are updated together.
#[derive(Default)]
pub(crate) struct Part {
    /// The parameters, each once, in the order of the model.
    pub params: Vec<ParamId>,
    pub grads: GradientsParams,
}

/// Splits gradients by the bucket of their parameter. `bucket_of` sees the parameters that have a gradient, each once, in
/// the order of the model.
fn split<M: Module>(
    model: &M,
    grads: GradientsParams,
    bucket_of: impl FnMut(&dyn AnyParam) -> usize,
) -> BTreeMap<usize, Part> {
    struct SplitGradients<F> {
        bucket_of: F,
        grads: GradientsParams,
        parts: BTreeMap<usize, Part>,
    }
    impl<F: FnMut(&dyn AnyParam) -> usize> ModuleVisitor for SplitGradients<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.grads.remove::<D>(param.id) {
                let part = self.parts.entry((self.bucket_of)(param)).or_default();
                part.params.push(param.id);
                part.grads.register(param.id, grad);
            }
        }
    }
    let mut split = SplitGradients { bucket_of, grads, parts: BTreeMap::new() };
    model.visit(&mut split);
    split.parts
}

/// Splits gradients into parts of neighbours whose parameters have at most `most` bytes together, unless one alone has
/// more.
pub(crate) fn split_in<M: Module>(model: &M, grads: GradientsParams, most: usize) -> Vec<Part> {
    let (mut bucket, mut bytes) = (0, 0usize);
    let bucket_of = |param: &dyn AnyParam| {
        if bytes > 0 && bytes.saturating_add(param.bytes()) > most {
            (bucket, bytes) = (bucket + 1, 0);
        }
        bytes = bytes.saturating_add(param.bytes());
        bucket
    };
    split(model, grads, bucket_of).into_values().collect()
}
