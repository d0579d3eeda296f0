//! One pass through a model whose block parameters are provided segment by segment.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Shape, Tensor};
use firebrick_world::{host_device, is_host};

use super::deliveries::Deliveries;
use super::lock;
use super::plan::SegmentPlan;
use super::root::Root;
use super::units::{Handling, Values};
use crate::moving::{Moving, copied};
use crate::params::{Trained, trained_here, wake};
use crate::zero::{Gathers, Part, add};
use crate::{AnyParam, ParkedParam, ParkedRead, StrategyError};

/// A model during a pass.
pub(crate) struct Entered {
    pub(super) plan: Arc<SegmentPlan>,
    pub(super) device: Device,
    /// The parameters of blocks, which are stored elsewhere.
    pub(super) stored: HashMap<ParamId, Stored>,
    /// The parameters of each unit, in the order of the model.
    members: Vec<Vec<ParamId>>,
    /// The units that this pass has reached.
    met: Mutex<Vec<Met>>,
    /// The running gathers, for the next segments.
    ahead: Mutex<HashMap<usize, Gathers>>,
    /// The reads that have begun, of parameters that wait outside memory, for the next segments.
    reads: Mutex<HashMap<usize, ParkedRead>>,
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
    /// Flat: the whole parameter, or this rank's shard. `None` if it waits outside memory.
    value: Option<Tensor<1>>,
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
            reads: Mutex::default(),
            last: Mutex::default(),
            delivered: Mutex::default(),
            silent,
        };
        match handling.provides() {
            true => model = model.map(&mut PutAway(&mut entered)),
            false => plan.wake_outside(&model),
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
        let device = self.device.clone().inner();
        let parked = self.parked(unit, false);
        let read = match parked.is_empty() {
            true => Vec::new(),
            false => {
                let begun = lock(&self.reads).remove(&unit);
                let reading = begun.map_or_else(|| self.begin_read(&parked), Some);
                reading.map_or_else(Vec::new, |reading| self.read_or_zeros(reading, &parked))
            }
        };
        self.start_next(unit, way)?;
        // What was read is a copy already.
        match is_host(&device) {
            true => values.extend(std::iter::zip(parked, read)),
            false => values.extend(self.fetched(parked, read, &device)?),
        }
        let (ids, stored) = self.here(unit, false).into_iter().unzip();
        values.extend(self.fetched(ids, stored, &device)?);
        Ok(values)
    }

    /// Moves parameters to the device.
    fn fetched(
        &self,
        ids: Vec<ParamId>,
        values: Vec<Tensor<1>>,
        device: &Device,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        let fetched = Moving::begin(values, device, self.handling().moves())?;
        Ok(std::iter::zip(ids, fetched.wait()?).collect())
    }

    fn is_gathered(&self, unit: usize) -> bool {
        self.members[unit].iter().any(|id| self.gathers(*id))
    }

    fn gathers(&self, id: ParamId) -> bool {
        let handling = self.handling();
        handling.gathers && handling.sharding.as_ref().is_some_and(|sharding| sharding.shards(id))
    }

    /// Returns the parameters of a unit that are in memory: those that are gathered, or the others.
    fn here(&self, unit: usize, gathered: bool) -> Vec<(ParamId, Tensor<1>)> {
        let ids = self.members[unit].iter().filter(|id| self.gathers(**id) == gathered);
        ids.filter_map(|id| Some((*id, self.stored[id].value.clone()?))).collect()
    }

    /// Returns the parameters of a unit that wait outside memory: those that are gathered, or the others.
    fn parked(&self, unit: usize, gathered: bool) -> Vec<ParamId> {
        let ids = self.members[unit].iter().copied().filter(|id| self.gathers(*id) == gathered);
        ids.filter(|id| self.stored[id].value.is_none()).collect()
    }

    fn begin_read(&self, ids: &[ParamId]) -> Option<ParkedRead> {
        Some(self.handling().parked.as_ref()?.begin_read(ids))
    }

    /// Waits for what is read. If it cannot be read, returns zeros, and the pass reports the error when it is over: until then
    /// the other ranks wait for this rank in each gather and sum of the pass.
    fn read_or_zeros(&self, reading: ParkedRead, ids: &[ParamId]) -> Vec<Tensor<1>> {
        reading.wait().unwrap_or_else(|error| {
            self.plan.report(error);
            ids.iter().map(|id| self.zeros(*id)).collect()
        })
    }

    /// Begins to gather a unit. Shards that wait outside memory are read first.
    fn start(&self, unit: usize) -> Result<Gathers, StrategyError> {
        let handling = self.handling();
        let mut shards: HashMap<_, _> = self.here(unit, true).into_iter().collect();
        let parked = self.parked(unit, true);
        if let Some(reading) = self.begin_read(&parked).filter(|_| !parked.is_empty()) {
            let read = self.read_or_zeros(reading, &parked);
            shards.extend(std::iter::zip(parked, read));
        }
        // In the order of the model on every rank.
        let ids = self.members[unit].iter();
        let shards = ids.filter_map(|id| Some((*id, shards.remove(id)?))).collect();
        let sharding = handling.sharding.as_ref().expect("only shards are gathered");
        sharding.begin_gather(handling.units.path(unit), shards, &self.device.clone().inner())
    }

    /// Returns zeros in place of what waits outside memory: of this rank's shard if the parameter is gathered, otherwise of all
    /// of it.
    fn zeros(&self, id: ParamId) -> Tensor<1> {
        let Stored { shape, dtype, .. } = &self.stored[&id];
        let sharding = self.handling().sharding.as_ref().filter(|_| self.gathers(id));
        let rows = sharding.and_then(|sharding| sharding.rows(id));
        let own = rows.map_or(shape[0], |rows| rows.per_rank());
        let elements = own * shape[1..].iter().product::<usize>();
        Tensor::zeros([elements], (&host_device(), *dtype))
    }

    /// Begins to gather or read the unit that comes after this one.
    fn start_next(&self, unit: usize, way: Way) -> Result<(), StrategyError> {
        let (is_gathered, is_read) = (self.is_gathered(unit), !self.parked(unit, false).is_empty());
        if !is_gathered && !is_read {
            if way != Way::Backward {
                lock(&self.met).push(Met::of(unit, way));
            }
            return Ok(());
        }
        let Some(next) = self.next(unit, way) else { return Ok(()) };
        if is_gathered && !lock(&self.ahead).contains_key(&next) {
            let gathering = self.start(next)?;
            lock(&self.ahead).insert(next, gathering);
        }
        let parked = self.parked(next, false);
        if !parked.is_empty() && !lock(&self.reads).contains_key(&next) {
            let begun = self.begin_read(&parked).map(|read| (next, read));
            lock(&self.reads).extend(begun);
        }
        Ok(())
    }

    /// Predicts the next unit: forward from the order of the last pass, backward from the order of this one.
    fn next(&self, unit: usize, way: Way) -> Option<usize> {
        let mut met = lock(&self.met);
        match way {
            Way::Only | Way::Forward => {
                let next = self.plan.comes_after(met.len(), unit);
                met.push(Met::of(unit, way));
                next
            }
            Way::Backward => {
                let place = met.iter().rposition(|met| met.unit == unit)?;
                met.truncate(place);
                // The backward pass ends above a unit that it does not run.
                met.last().filter(|met| met.returns).map(|met| met.unit)
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

/// A unit that the forward pass has run.
struct Met {
    unit: usize,
    /// Whether the backward pass runs it again.
    returns: bool,
}

impl Met {
    fn of(unit: usize, way: Way) -> Self {
        Self { unit, returns: way == Way::Forward }
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
        let id = param.id;
        let parked = (!param.is_initialized()).then(|| handling.parked(id)).flatten();
        let (mut shape, dtype, is_trained, value) = match parked {
            Some(ParkedParam { shape, dtype, is_trained }) => {
                (shape, dtype, is_trained && entered.device.is_autodiff(), None)
            }
            None => {
                let value = param.base();
                let (dtype, is_trained) = (value.dtype(), value.is_require_grad());
                (value.dims().to_vec(), dtype, is_trained, Some(value.inner().reshape([-1])))
            }
        };
        let rows = handling.sharding.as_ref().filter(|_| handling.gathers).and_then(|shards| shards.rows(id));
        if let Some(rows) = rows {
            shape[0] = rows.rows();
        }
        let plan = entered.plan.clone();
        if !entered.stored.contains_key(&id) {
            entered.members[unit].push(id);
            entered.stored.insert(id, Stored { shape: shape.clone(), dtype, is_trained, value });
        }
        let shape = Shape::from(shape);
        let lazy_shape = shape.clone();
        // Only code outside the segment reads this value.
        let outside = move |device: &Device, _: bool| {
            plan.report(StrategyError::OutsideSegment {
                parameter: plan.paths().path(id).unwrap_or("a parameter").into(),
            });
            Tensor::<D>::zeros(shape, (device, dtype))
        };
        Param::uninitialized(id, outside, entered.device.clone(), is_trained, lazy_shape)
    }
}
