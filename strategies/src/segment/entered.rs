//! One pass through a model whose block parameters are provided segment by segment.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use firebrick_world::host_device;

use super::deliveries::Deliveries;
use super::lock;
use super::plan::SegmentPlan;
use super::root::Root;
use super::units::{Handling, Values};
use crate::moving::{Moving, copied};
use crate::params::{Trained, trained_here};
use crate::pass::wake;
use crate::zero::{Gathers, Part, add};
use crate::{AnyParam, StrategyError};

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
    ahead: Mutex<HashMap<usize, Gathers>>,
    /// The unit that the forward pass reached last, with its parameters: the backward pass begins with it.
    last: Mutex<Option<(usize, Values)>>,
    delivered: Mutex<Deliveries>,
    /// Whether this rank takes part in the collectives and contributes nothing.
    pub(super) silent: bool,
}

/// A parameter that is stored elsewhere than where the pass computes.
pub(super) struct Stored {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub is_trained: bool,
    /// Flat: the whole parameter, or this rank's shard.
    value: Tensor<1>,
}

/// The direction of a pass.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Way {
    /// Forward, without a backward pass.
    Only,
    /// Forward, before a backward pass.
    Forward,
    Backward,
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entered({} parameters wait elsewhere)", self.stored.len())
    }
}

impl Entered {
    /// Returns the model for the pass, and the state that provides the other parameters. The passes of a window share
    /// the gathered parameters outside blocks as its `root`.
    pub fn new<M: Module>(
        model: &M,
        plan: &Arc<SegmentPlan>,
        device: &Device,
        silent: bool,
        root: Option<&Root>,
    ) -> Result<(M, Arc<Self>), StrategyError> {
        let handling = plan.handling();
        let mut model = Root::fill(root, model.clone(), handling)?;
        let mut entered = Self {
            plan: plan.clone(),
            device: device.clone(),
            stored: HashMap::new(),
            members: vec![Vec::new(); handling.units.count()],
            met: Mutex::default(),
            ahead: Mutex::default(),
            last: Mutex::default(),
            delivered: Mutex::default(),
            silent,
        };
        if handling.provides() {
            model = model.map(&mut PutAway(&mut entered));
        }
        if handling.fetches {
            // A parameter without a value is provided by its segment.
            let is_here = |param: &dyn AnyParam| param.is_initialized();
            model = copied(model, &device.clone().inner(), handling.moves(), is_here)?;
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

    /// Takes the gradients that segments have delivered, each flat. If these are summed over the ranks, also sums and
    /// takes the gradients of parameters outside blocks from `graph`.
    pub fn take_delivered<M: Module>(
        &self,
        model: &M,
        graph: &mut GradientsParams,
    ) -> Result<HashMap<ParamId, Tensor<1>>, StrategyError> {
        // A backward pass that never reached its segment has left it.
        lock(&self.last).take();
        let delivered = std::mem::take(&mut *lock(&self.delivered));
        let Some(sharding) = &self.handling().sharding else { return delivered.all() };
        if !self.is_provided() {
            // The pass did not read these, so they may still be on their way from other ranks.
            wake(model);
        }
        // The parts of the model's own graph, without gradients so far.
        let own = trained_here(model).into_iter();
        let parts = own.map(|Trained { id, shape, dtype }| Part { id, shape, dtype, grad: None });
        let sums = sharding.reduce_all(model, graph, parts.collect(), &self.gradients_to())?;
        let mut all = delivered.all()?;
        sums.into_iter().for_each(|(id, sum)| add(&mut all, id, sum));
        Ok(all)
    }

    /// Returns the device on which gradients arrive.
    fn gradients_to(&self) -> Device {
        if self.handling().lands { host_device() } else { self.device.clone().inner() }
    }

    /// Returns the parameters of a unit on the device. The last unit of a forward pass is kept for the backward pass, which
    /// begins with it.
    pub(super) fn bring(&self, unit: usize, way: Way) -> Result<Values, StrategyError> {
        // The parameters of another unit are dropped before this one's are awaited.
        let last = lock(&self.last).take();
        let values = match last.filter(|(last, _)| way == Way::Backward && *last == unit) {
            Some((_, values)) => {
                self.start_next(unit, way)?;
                values
            }
            None => self.provided(unit, way)?,
        };
        if way == Way::Forward {
            *lock(&self.last) = Some((unit, values.clone()));
        }
        Ok(values)
    }

    /// Gathers or reads the parameters of a unit.
    fn provided(&self, unit: usize, way: Way) -> Result<Values, StrategyError> {
        let mut values = Values::new();
        if self.is_gathered(unit) {
            let started = lock(&self.ahead).remove(&unit);
            let gathering = started.map_or_else(|| self.start(unit), Ok)?;
            values.extend(gathering.wait()?);
        }
        self.start_next(unit, way)?;
        let read: Vec<_> = self.members[unit].iter().copied().filter(|id| !self.gathers(*id)).collect();
        let stored = read.iter().map(|id| self.stored[id].value.clone()).collect();
        let fetched = Moving::begin(stored, &self.device.clone().inner(), self.handling().moves())?;
        values.extend(std::iter::zip(read, fetched.wait()?));
        Ok(values)
    }

    fn is_gathered(&self, unit: usize) -> bool {
        self.members[unit].iter().any(|id| self.gathers(*id))
    }

    fn gathers(&self, id: ParamId) -> bool {
        let handling = self.handling();
        handling.gathers && handling.sharding.as_ref().is_some_and(|sharding| sharding.shards(id))
    }

    fn start(&self, unit: usize) -> Result<Gathers, StrategyError> {
        let handling = self.handling();
        let ids = self.members[unit].iter().filter(|id| self.gathers(**id));
        let shards = ids.map(|id| (*id, self.stored[id].value.clone())).collect();
        let sharding = handling.sharding.as_ref().expect("only shards are gathered");
        sharding.begin_gather(handling.units.path(unit), shards, &self.device.clone().inner())
    }

    /// Begins to gather the unit that comes after this one.
    fn start_next(&self, unit: usize, way: Way) -> Result<(), StrategyError> {
        if !self.is_gathered(unit) {
            if way != Way::Backward {
                lock(&self.met).push(unit);
            }
            return Ok(());
        }
        if let Some(next) = self.next(unit, way).filter(|next| !lock(&self.ahead).contains_key(next)) {
            let gathering = self.start(next)?;
            lock(&self.ahead).insert(next, gathering);
        }
        Ok(())
    }

    /// Predicts the next unit: forward from the order of the last pass, backward from the order of this one.
    fn next(&self, unit: usize, way: Way) -> Option<usize> {
        let mut met = lock(&self.met);
        match way {
            Way::Only | Way::Forward => {
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
        let mut delivered = lock(&self.delivered);
        if let Some(sharding) = &handling.sharding {
            let bytes = sharding.bytes_of_sums(&parts);
            let sums = sharding.begin_reduce(handling.units.path(unit), parts, &self.gradients_to())?;
            return delivered.expect(sums).map(|()| bytes);
        }
        let bytes = parts.iter().filter(|part| part.grad.is_some()).map(Part::bytes).sum();
        let (ids, grads): (Vec<_>, Vec<_>) =
            parts.into_iter().filter_map(|part| Some((part.id, part.grad?))).unzip();
        match handling.lands {
            false => std::iter::zip(ids, grads).for_each(|(id, grad)| delivered.add(id, grad)),
            true => delivered.land(ids, Moving::begin(grads, &host_device(), handling.moves())?)?,
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
            let value = value.inner().reshape([-1]);
            entered.members[unit].push(id);
            entered.stored.insert(id, Stored { shape: shape.to_vec(), dtype, is_trained, value });
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
