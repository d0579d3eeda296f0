//! One pass through a model whose blocks' parameters come and go.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::unit::Unit;
use super::units::Handling;
use super::{SegmentPlan, lock};
use crate::host::on_host;
use crate::params::{Trained, trained_here};
use crate::world::Gathering;
use crate::zero::{Part, add};
use crate::{ParamMap, StrategyError, map_params, relift};

/// A model that a pass goes through.
pub(crate) struct Entered {
    pub(super) plan: Arc<SegmentPlan>,
    pub(super) device: Device,
    /// The parameters of blocks that wait elsewhere.
    pub(super) stored: HashMap<ParamId, Stored>,
    /// Those of each unit, in the order of the model.
    members: Vec<Vec<ParamId>>,
    /// The units that this pass has come to.
    met: Mutex<Vec<usize>>,
    /// What is being gathered for the next segment.
    ahead: Mutex<HashMap<usize, Gathering>>,
    delivered: Mutex<HashMap<ParamId, TensorData>>,
    /// Takes part in what the ranks do together, and adds nothing.
    pub(super) silent: bool,
}

/// A parameter that is not where it is computed with.
pub(super) struct Stored {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub is_trained: bool,
    read: Box<dyn Fn() -> TensorData + Send + Sync>,
}

/// Which way a pass goes.
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
    /// The model as the pass reads it, and what is needed to bring the rest.
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

    /// Whether parameters of blocks wait elsewhere.
    pub fn is_provided(&self) -> bool {
        self.handling().provides()
    }

    /// The unit that a block is.
    pub fn unit<B: Module>(self: &Arc<Self>, block: &B) -> Option<Unit> {
        let index = self.handling().units.of_block(block)?;
        Some(Unit::new(self.clone(), index))
    }

    /// Whether a segment delivers this parameter's gradient.
    pub fn delivers(&self, id: ParamId) -> bool {
        self.handling().delivers() && self.handling().units.has(id)
    }

    /// The gradients that segments have delivered; where they were summed over the ranks, so are now those of
    /// `graph`, which this takes: of what is in no block.
    pub fn take_delivered<M: Module>(
        &self,
        model: &M,
        graph: &mut GradientsParams,
    ) -> Result<HashMap<ParamId, TensorData>, StrategyError> {
        let mut delivered = std::mem::take(&mut *lock(&self.delivered));
        if let Some(sharding) = &self.handling().sharding {
            // Those that the model's own graph may find, still without data.
            let own = trained_here(model).into_iter();
            let parts = own.map(|Trained { id, shape, dtype }| Part { id, shape, dtype, data: None });
            for (id, sum) in sharding.reduce_all(model, graph, parts.collect())? {
                add(&mut delivered, id, sum);
            }
        }
        Ok(delivered)
    }

    /// Parameters of a unit, with the padding that they were gathered with.
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

    /// The unit that is likely to come next: forward as in the last pass, backward as this one came.
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

/// Takes the parameters of blocks away.
struct PutAway<'a>(&'a mut Entered);

impl ModuleMapper for PutAway<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let entered = &mut *self.0;
        let handling = entered.plan.handling();
        let Some(unit) = handling.units.of_param(param.id).filter(|_| handling.is_away(param.id)) else {
            // What has no value from here on waits elsewhere.
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
        // Whoever reads it here reads it outside its segment.
        let outside = move |device: &Device, _: bool| {
            plan.report(StrategyError::OutsideSegment {
                parameter: plan.paths().path(id).unwrap_or("a parameter").into(),
            });
            Tensor::<D>::zeros(shape, (device, dtype))
        };
        Param::uninitialized(id, outside, entered.device.clone(), is_trained, shape.into())
    }
}

/// Copies what is in no block from the host.
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
