//! One pass through a model whose block parameters are provided segment by segment.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Shape, Tensor};
use firebrick_world::host_device;

use super::deliveries::Deliveries;
use super::fetching::{Fetching, Source};
use super::lock;
use super::plan::SegmentPlan;
use super::root::Root;
use super::units::{Handling, Values};
use crate::moving::{Moving, copied};
use crate::params::{Trained, trained_here, wake};
use crate::zero::{Gathers, Part, add};
use crate::{AnyParam, ParkedParam, StrategyError};

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
    /// The parameters that are on their way to the device, for the next segments.
    fetching: Mutex<HashMap<usize, Fetching>>,
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
            fetching: Mutex::default(),
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
        // A backward pass that never reached their segments has left them. They would hold parameters that are updated next.
        lock(&self.last).take();
        lock(&self.fetching).drain().for_each(|(_, fetching)| drop(fetching.wait(self.handling().moves())));
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

    /// Gathers or fetches the parameters of a unit.
    fn provided(&self, unit: usize, way: Way) -> Result<Values, StrategyError> {
        let mut values = Values::new();
        let fetching = lock(&self.fetching).remove(&unit);
        let fetching = fetching.map_or_else(|| self.fetch(unit), |begun| Ok(Some(begun)));
        if self.is_gathered(unit) {
            let started = lock(&self.ahead).remove(&unit);
            let gathering = started.map_or_else(|| self.start(unit), Ok)?;
            values.extend(gathering.wait()?);
        }
        let fetched = fetching
            .and_then(|fetching| fetching.map(|begun| begun.wait(self.handling().moves())).transpose());
        // Also if this rank's device has failed: the other ranks begin the next gather now.
        self.start_next(unit, way)?;
        values.extend(fetched?.into_iter().flatten());
        Ok(values)
    }

    fn is_gathered(&self, unit: usize) -> bool {
        self.members[unit].iter().any(|id| self.gathers(*id))
    }

    fn gathers(&self, id: ParamId) -> bool {
        let handling = self.handling();
        handling.gathers && handling.sharding.as_ref().is_some_and(|sharding| sharding.shards(id))
    }

    /// Returns the parameters of a unit that are gathered, or the others, in the order of the model. Begins to read those
    /// that wait outside memory.
    fn source(&self, unit: usize, gathered: bool) -> Source {
        let ids = self.members[unit].iter().copied().filter(|id| self.gathers(*id) == gathered);
        let ids: Vec<_> = ids.collect();
        let kinds = ids.iter().map(|id| (self.elements(*id), self.stored[id].dtype)).collect();
        let values = ids.iter().map(|id| self.stored[id].value.clone()).collect();
        let parked: Vec<_> = ids.iter().copied().filter(|id| self.stored[id].value.is_none()).collect();
        let waits = self.handling().parked.as_ref().filter(|_| !parked.is_empty());
        let reading = waits.map(|waits| waits.begin_read(&parked));
        Source { ids, kinds, values, reading, plan: self.plan.clone() }
    }

    /// Returns the elements of a parameter, or of this rank's shard if it is gathered.
    fn elements(&self, id: ParamId) -> usize {
        let Stored { shape, .. } = &self.stored[&id];
        let sharding = self.handling().sharding.as_ref().filter(|_| self.gathers(id));
        let rows = sharding.and_then(|sharding| sharding.rows(id));
        rows.map_or(shape[0], |rows| rows.per_rank()) * shape[1..].iter().product::<usize>()
    }

    /// Begins to gather a unit. Shards that wait outside memory are read first.
    fn start(&self, unit: usize) -> Result<Gathers, StrategyError> {
        let handling = self.handling();
        let source = self.source(unit, true);
        let shards = std::iter::zip(source.ids.clone(), source.wait()).collect();
        let sharding = handling.sharding.as_ref().expect("only shards are gathered");
        sharding.begin_gather(handling.units.path(unit), shards, &self.device.clone().inner())
    }

    /// Begins to fetch the parameters of a unit that are not gathered, if there are any.
    fn fetch(&self, unit: usize) -> Result<Option<Fetching>, StrategyError> {
        let source = self.source(unit, false);
        match source.ids.is_empty() {
            true => Ok(None),
            false => {
                let to = self.device.clone().inner();
                Fetching::begin(source, &to, self.handling().moves()).map(Some)
            }
        }
    }

    /// Begins to gather or fetch the unit that comes after this one.
    fn start_next(&self, unit: usize, way: Way) -> Result<(), StrategyError> {
        let Some(next) = self.next(unit, way) else { return Ok(()) };
        if self.is_gathered(next) && !lock(&self.ahead).contains_key(&next) {
            let gathering = self.start(next)?.uploading();
            lock(&self.ahead).insert(next, gathering);
        }
        if !lock(&self.fetching).contains_key(&next) {
            let fetching = self.fetch(next)?.map(|fetching| (next, fetching));
            lock(&self.fetching).extend(fetching);
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
