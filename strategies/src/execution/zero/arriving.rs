//! Parameters on their way from the other ranks, while training goes on.
//!
//! To publish a master in stages 1 and 2 is to begin all of its gathers, and to return a replica of lazy parameters. Those
//! outside blocks come first, because a pass waits for them before it begins; then come the blocks, in the order of the
//! model. The forward pass waits for a bucket when it reads the first parameter of it, and the bucket after it then goes up to
//! the device beside the computation:
//!
//! | link | gather block 1 | gather block 2 | gather block 3 | |
//! |---|---|---|---|---|
//! | device | update | forward block 1 | forward block 2 | forward block 3 |

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};

use firebrick_kernels::memory::Beyond;

use crate::error::Faults;
use crate::params::Lifting;
use crate::sharding::{Gathers, Rows, Sharding, shards};
use crate::{Paths, SegmentPlan, StrategyError, Units};

/// The gathers of a published master.
#[derive(Debug, Default)]
pub(super) struct Arriving(Vec<Arc<Bucket>>);

/// Parameters that arrive together.
#[derive(Debug)]
struct Bucket {
    sharding: Arc<Sharding>,
    state: Mutex<BucketState>,
    device: Device,
    destination: Arc<Destination>,
}

/// The model in which parameters arrive.
#[derive(Debug)]
pub(super) struct Destination {
    paths: Paths,
    blocks: Units,
    faults: Faults,
}

#[derive(Debug)]
struct BucketState {
    coming: Option<Gathers>,
    there: HashMap<ParamId, GatheredParam>,
    /// The bucket that the pass reads after this one.
    next: Weak<Bucket>,
}

/// A gathered parameter, flat.
#[derive(Clone, Debug)]
struct GatheredParam {
    padded: Tensor<1>,
    whole: Tensor<1>,
}

impl Destination {
    pub fn of(plan: &SegmentPlan) -> Self {
        let paths = plan.paths();
        let blocks: Vec<_> = paths.blocks().map(str::to_string).collect();
        Self { paths: paths.clone(), blocks: Units::of(paths, &blocks), faults: plan.faults().clone() }
    }

    /// Returns where to report faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Reports a parameter of which a clone was set to require a gradient or not, before it had a value: both share the value.
    fn report_set(&self, id: ParamId) {
        let parameter = self.paths.path(id).unwrap_or("a parameter").into();
        self.faults.report(StrategyError::SetOnTheWay { parameter });
    }
}

impl Arriving {
    /// Begins to gather all sharded parameters of a master. Returns the replica, whose parameters are lazy: each waits for
    /// its bucket when it is first read. If a rank is lost meanwhile, the next check of the pass returns the error, and the
    /// parameter is zero.
    pub fn begin<M: Module>(
        sharding: &Arc<Sharding>,
        master: M,
        destination: &Arc<Destination>,
    ) -> Result<(M, Self), StrategyError> {
        let mut shards = shards(&master, |id| sharding.shards(id));
        shards.sort_by_key(|(id, _)| destination.blocks.has(*id));
        let (mut all, mut bucket_of) = (Vec::new(), HashMap::new());
        for bucket in sharding.buckets(&shards) {
            let device = bucket[0].1.device();
            let gathers = sharding.begin_gather("the parameters", bucket.to_vec(), &device)?;
            let state = BucketState { coming: Some(gathers), there: HashMap::new(), next: Weak::new() };
            let (sharding, state) = (sharding.clone(), Mutex::new(state));
            let arriving = Arc::new(Bucket { sharding, state, device, destination: destination.clone() });
            bucket_of.extend(bucket.iter().map(|(id, _)| (*id, arriving.clone())));
            all.push(arriving);
        }
        drop(shards);
        for (bucket, next) in all.iter().zip(all.iter().skip(1)) {
            bucket.lock().next = Arc::downgrade(next);
        }
        if let Some(first) = all.first() {
            first.upload();
        }
        Ok((master.map(&mut Lazy { bucket_of, done: HashMap::new() }), Self(all)))
    }

    /// Waits for all parameters. Returns each flat and with its padding.
    pub fn wait(self) -> HashMap<ParamId, Tensor<1>> {
        let mut all = HashMap::new();
        for bucket in self.0 {
            bucket
                .arrived(|there| all.extend(there.iter().map(|(id, arrived)| (*id, arrived.padded.clone()))));
        }
        all
    }
}

impl Bucket {
    fn lock(&self) -> MutexGuard<'_, BucketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the bucket to a GPU when it has arrived, unless it is there.
    fn upload(&self) {
        let mut state = self.lock();
        if let Some(gathers) = state.coming.take() {
            // The parameters outlive the pass that reads them.
            state.coming = Some(self.device.memory_persistent_allocations(gathers, Gathers::uploading));
        }
    }

    /// Waits for the bucket, unless it is there, and looks at its parameters.
    fn arrived<T>(&self, look: impl FnOnce(&HashMap<ParamId, GatheredParam>) -> T) -> T {
        let mut state = self.lock();
        if let Some(gathers) = state.coming.take() {
            let coming = (&*self.sharding, gathers);
            // As in `upload`.
            let there = self.device.memory_persistent_allocations(coming, |(sharding, gathers)| {
                let gathered = Beyond::without(|| gathers.wait())?;
                let arrived = |(id, padded)| (id, GatheredParam::of(padded, sharding.rows(id)));
                Ok(gathered.into_iter().map(arrived).collect())
            });
            match there {
                Ok(there) => {
                    state.there = there;
                    if let Some(next) = state.next.upgrade() {
                        next.upload();
                    }
                }
                Err(error) => self.destination.faults.report(error),
            }
        }
        look(&state.there)
    }
}

impl GatheredParam {
    fn of(padded: Tensor<1>, rows: Option<Rows>) -> Self {
        let whole = match rows.filter(|rows| rows.is_padded()) {
            None => padded.clone(),
            Some(rows) => {
                let elements = padded.dims()[0] / rows.padded() * rows.rows();
                padded.clone().narrow(0, 0, elements)
            }
        };
        Self { padded, whole }
    }
}

/// Replaces shards by parameters that wait for their bucket.
struct Lazy {
    bucket_of: HashMap<ParamId, Arc<Bucket>>,
    /// A tied parameter is one tensor at all of its places.
    done: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleMapper for Lazy {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(bucket) = self.bucket_of.get(&param.id).cloned() else { return param };
        if let Some(done) = self.done.get(&param.id).and_then(|done| done.downcast_ref::<Param<Tensor<D>>>())
        {
            return done.clone();
        }
        let (id, shard, mapper) = param.consume();
        let mut shape = shard.shape();
        if let Some(rows) = bucket.sharding.rows(id) {
            shape[0] = rows.rows();
        }
        let (dtype, lifting, is_trained) = (shard.dtype(), Lifting::of(&shard), shard.is_require_grad());
        let whole = {
            let shape = shape.clone();
            move |device: &Device, is_set_to: bool| {
                if is_set_to != is_trained {
                    bucket.destination.report_set(id);
                }
                let inner = device.clone().inner();
                let value = match bucket.arrived(|there| Some(there.get(&id)?.whole.clone())) {
                    Some(whole) => whole.to_device(&inner).reshape(shape),
                    None => Tensor::zeros(shape, (&inner, dtype)),
                };
                lifting.lift(value)
            }
        };
        let lazy = Param::uninitialized(id, whole, shard.device(), is_trained, shape);
        let (load, save) = (mapper.clone(), mapper);
        let lazy =
            lazy.load_mapper(move |value| load.on_load(value)).save_mapper(move |value| save.on_save(value));
        self.done.insert(id, Box::new(lazy.clone()));
        lazy
    }
}
