//! One pass through a model whose block parameters are provided segment by segment.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebrick_world::{Gathering, on_host};

use super::lock;
use super::plan::SegmentPlan;
use super::units::Handling;
use crate::params::{Trained, trained_here};
use crate::zero::{Part, add};
use crate::{ParamMap, StrategyError, map_params, relift};

/// A model during a pass.
pub(crate) struct Entered {
    pub(super) plan: Arc<SegmentPlan>,
    pub(super) device: Device,
    /// The parameters of blocks, which are stored elsewhere.
    pub(super) stored: HashMap<ParamId, Stored>,
    /// The parameters of each unit, in the order of the model.
    members: Vec<Vec<ParamId>>,
    /// The units that this pass has reached.
    met: Mutex<Vec<usize>>,
    /// The running gathers, for the next segments.
    ahead: Mutex<HashMap<usize, Gathering>>,
    delivered: Mutex<HashMap<ParamId, TensorData>>,
    /// Whether this rank takes part in the collectives and contributes nothing.
    pub(super) silent: bool,
}

/// A parameter that is stored elsewhere than where the pass computes.
pub(super) struct Stored {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub is_trained: bool,
    read: Box<dyn Fn() -> TensorData + Send + Sync>,
}

/// The direction of a pass.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Way {
    Forward,
    Backward,
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entered({} parameters wait elsewhere)", self.stored.len())
    }
}

impl Entered {
    /// Returns the model for the pass, and the state that provides the other parameters.
    pub fn new<M: Module>(
        model: &M,
        plan: &Arc<SegmentPlan>,
        device: &Device,
        silent: bool,
    ) -> Result<(M, Arc<Self>), StrategyError> {
        let handling = plan.handling();
        let mut model = model.clone();
        if let (true, Some(sharding)) = (handling.gathers, &handling.sharding) {
            model = sharding.gather(model, "what is in no block", |id| !handling.units.has(id))?.model;
        }
        let mut entered = Self {
            plan: plan.clone(),
            device: device.clone(),
            stored: HashMap::new(),
            members: vec![Vec::new(); handling.units.count()],
            met: Mutex::default(),
            ahead: Mutex::default(),
            delivered: Mutex::default(),
            silent,
        };
        if handling.provides() {
            model = model.map(&mut PutAway(&mut entered));
        }
        if handling.fetches {
            model = map_params(model, &mut FetchRoot(&device.clone().inner()));
        }
        Ok((model, Arc::new(entered)))
    }

    pub(super) fn handling(&self) -> &Handling {
        self.plan.handling()
    }

    /// Returns whether the parameters of blocks are stored elsewhere.
    pub fn is_provided(&self) -> bool {
        self.handling().provides()
    }

    /// Returns whether a segment delivers this parameter's gradient.
    pub fn delivers(&self, id: ParamId) -> bool {
        self.handling().delivers() && self.handling().units.has(id)
    }

    /// Takes the gradients that segments have delivered. If these are summed over the ranks, also sums and takes the
    /// gradients of parameters outside blocks from `graph`.
    pub fn take_delivered<M: Module>(
        &self,
        model: &M,
        graph: &mut GradientsParams,
    ) -> Result<HashMap<ParamId, TensorData>, StrategyError> {
        let mut delivered = std::mem::take(&mut *lock(&self.delivered));
        if let Some(sharding) = &self.handling().sharding {
            // The parts of the model's own graph, without data so far.
            let own = trained_here(model).into_iter();
            let parts = own.map(|Trained { id, shape, dtype }| Part { id, shape, dtype, data: None });
            for (id, sum) in sharding.reduce_all(model, graph, parts.collect())? {
                add(&mut delivered, id, sum);
            }
        }
        Ok(delivered)
    }

    /// Returns the parameters of a unit, including the padding of gathered ones.
    pub(super) fn bring(&self, unit: usize, way: Way) -> Result<HashMap<ParamId, TensorData>, StrategyError> {
        let (gathered, read): (Vec<_>, Vec<_>) =
            self.members[unit].iter().copied().partition(|id| self.gathers(*id));
        let mut data = HashMap::new();
        if !gathered.is_empty() {
            let started = lock(&self.ahead).remove(&unit);
            let gathering = started.map_or_else(|| self.start(unit), Ok)?;
            let next = self.next(unit, way).filter(|next| !lock(&self.ahead).contains_key(next));
            let parts = gathering.wait()?;
            if let Some(next) = next {
                let gathering = self.start(next)?;
                lock(&self.ahead).insert(next, gathering);
            }
            data.extend(std::iter::zip(gathered, parts));
        } else if way == Way::Forward {
            lock(&self.met).push(unit);
        }
        data.extend(read.into_iter().map(|id| (id, (self.stored[&id].read)())));
        Ok(data)
    }

    fn gathers(&self, id: ParamId) -> bool {
        let handling = self.handling();
        handling.gathers && handling.sharding.as_ref().is_some_and(|sharding| sharding.shards(id))
    }

    fn start(&self, unit: usize) -> Result<Gathering, StrategyError> {
        let handling = self.handling();
        let ids = self.members[unit].iter().filter(|id| self.gathers(**id));
        let shards = ids.map(|id| (self.stored[id].read)()).collect();
        let world = handling.sharding.as_ref().expect("only shards are gathered").world();
        Ok(world.start_all_gather(handling.units.path(unit), shards)?)
    }

    /// Predicts the next unit: forward from the order of the last pass, backward from the order of this one.
    fn next(&self, unit: usize, way: Way) -> Option<usize> {
        let mut met = lock(&self.met);
        match way {
            Way::Forward => {
                let next = self.plan.comes_after(met.len(), unit);
                met.push(unit);
                next
            }
            Way::Backward => {
                let place = met.iter().rposition(|met| *met == unit)?;
                met.truncate(place);
                met.last().copied()
            }
        }
    }

    pub(super) fn deliver(&self, unit: usize, parts: Vec<Part>) -> Result<usize, StrategyError> {
        let handling = self.handling();
        let sums = match &handling.sharding {
            Some(sharding) => sharding.reduce(handling.units.path(unit), parts)?,
            None => parts.into_iter().filter_map(|part| Some((part.id, part.data?))).collect(),
        };
        let mut delivered = lock(&self.delivered);
        let mut bytes = 0;
        for (id, sum) in sums {
            bytes += sum.as_bytes().len();
            add(&mut delivered, id, sum);
        }
        Ok(bytes)
    }
}

/// Takes the parameters out of blocks.
struct PutAway<'a>(&'a mut Entered);

impl ModuleMapper for PutAway<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let entered = &mut *self.0;
        let handling = entered.plan.handling();
        let Some(unit) = handling.units.of_param(param.id).filter(|_| handling.is_away(param.id)) else {
            // From here on, a parameter without a value is stored elsewhere.
            param.base();
            return param;
        };
        let (id, value) = (param.id, param.base());
        let rows = handling.sharding.as_ref().filter(|_| handling.gathers).and_then(|shards| shards.rows(id));
        let mut shape = value.dims();
        if let Some(rows) = rows {
            shape[0] = rows.rows();
        }
        let (dtype, is_trained) = (value.dtype(), value.is_require_grad());
        let plan = entered.plan.clone();
        if !entered.stored.contains_key(&id) {
            let inner = value.inner();
            let read = Box::new(move || on_host(inner.clone()));
            entered.members[unit].push(id);
            entered.stored.insert(id, Stored { shape: shape.to_vec(), dtype, is_trained, read });
        }
        // Only code outside the segment reads this value.
        let outside = move |device: &Device, _: bool| {
            plan.report(StrategyError::OutsideSegment {
                parameter: plan.paths().path(id).unwrap_or("a parameter").into(),
            });
            Tensor::<D>::zeros(shape, (device, dtype))
        };
        Param::uninitialized(id, outside, entered.device.clone(), is_trained, shape.into())
    }
}

/// Copies the parameters outside blocks from the host.
struct FetchRoot<'a>(&'a Device);

impl ParamMap for FetchRoot<'_> {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        let dtype = value.dtype();
        relift(Tensor::from_data(on_host(value.clone()), (self.0, dtype)), &value)
    }

    fn wakes(&self) -> bool {
        false
    }
}
