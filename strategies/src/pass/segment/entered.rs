//! One pass through a model whose block parameters are provided segment by segment.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use firebrick_world::host_device;

use super::deliveries::{Deliveries, add};
use super::fetching::{Fetching, Source, zeros};
use super::lock;
use super::plan::SegmentPlan;
use super::put_away::{PutAway, Stored};
use super::root::Root;
use super::units::{Handling, Values};
use crate::moving::{Moving, copied};
use crate::params::{Trained, trained_here, wake};
use crate::sharding::{Gathers, Part, Sharding};
use crate::{AnyParam, StrategyError};

/// A model during a pass.
pub(crate) struct EnteredModel {
    pub(super) plan: Arc<SegmentPlan>,
    pub(super) device: Device,
    /// The parameters of blocks, which are stored elsewhere.
    pub(super) stored: HashMap<ParamId, Stored>,
    /// The parameters of each unit, in the order of the model.
    members: Vec<Vec<ParamId>>,
    /// The units that this pass has reached.
    met: Mutex<Vec<UnitRun>>,
    /// The running gathers, for the next segments.
    ahead: Mutex<HashMap<usize, Gathers>>,
    /// The parameters that are on their way to the device, for the next segments.
    fetching: Mutex<HashMap<usize, Fetching>>,
    /// This rank's shards that are on their way to where the ranks gather them, for the segments after the next ones.
    shards: Mutex<HashMap<usize, Fetching>>,
    /// The unit that the forward pass reached last, with its parameters: the backward pass begins with it.
    last: Mutex<Option<(usize, Values)>>,
    delivered: Mutex<Deliveries>,
    /// Whether this rank takes part in the collectives and contributes nothing.
    pub(super) empty_batch: bool,
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

impl fmt::Debug for EnteredModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EnteredModel({} parameters wait elsewhere)", self.stored.len())
    }
}

impl EnteredModel {
    /// Returns the model for the pass, and the state that provides the other parameters. The passes of a step share
    /// the gathered parameters outside blocks as its `root`.
    pub fn new<M: Module>(
        model: &M,
        plan: &Arc<SegmentPlan>,
        device: &Device,
        empty_batch: bool,
        root: Option<&Root>,
    ) -> Result<(M, Arc<Self>), StrategyError> {
        let handling = plan.handling();
        let mut model = Root::fill(root, model.clone(), handling)?;
        let mut away = PutAway::new(plan, device);
        match handling.provides() {
            true => model = model.map(&mut away),
            false => plan.wake_outside(&model),
        }
        if handling.fetches {
            // A parameter without a value is provided by its segment.
            let is_here = |param: &dyn AnyParam| param.is_initialized();
            model = copied(model, &device.clone().inner(), handling.moves(), is_here)?;
        }
        let entered = Self {
            plan: plan.clone(),
            device: device.clone(),
            stored: away.stored,
            members: away.members,
            met: Mutex::default(),
            ahead: Mutex::default(),
            fetching: Mutex::default(),
            shards: Mutex::default(),
            last: Mutex::default(),
            delivered: Mutex::default(),
            empty_batch,
        };
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
        self.end_fetching();
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

    /// Drops the parameters of segments that the pass never reached, once nothing reads them: they would hold what is updated
    /// next.
    fn end_fetching(&self) {
        lock(&self.last).take();
        for left in [&self.fetching, &self.shards] {
            lock(left).drain().for_each(|(_, fetching)| drop(fetching.wait(self.handling().moves())));
        }
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
                self.plan.ends_at(lock(&self.met).len());
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
        let offloaded: Vec<_> = ids.iter().copied().filter(|id| self.stored[id].value.is_none()).collect();
        let waits = self.handling().offloaded.as_ref().filter(|_| !offloaded.is_empty());
        let reading = waits.map(|waits| waits.begin_read(&offloaded));
        Source { ids, kinds, values, reading, plan: self.plan.clone() }
    }

    /// Returns the elements of a parameter, or of this rank's shard if it is gathered.
    fn elements(&self, id: ParamId) -> usize {
        let Stored { shape, .. } = &self.stored[&id];
        let sharding = self.handling().sharding.as_ref().filter(|_| self.gathers(id));
        let rows = sharding.and_then(|sharding| sharding.rows(id));
        rows.map_or(shape[0], |rows| rows.per_rank()) * shape[1..].iter().product::<usize>()
    }

    /// Begins to gather a unit.
    fn start(&self, unit: usize) -> Result<Gathers, StrategyError> {
        let handling = self.handling();
        let begun = lock(&self.shards).remove(&unit);
        let begun = begun.map_or_else(|| self.fetch_shards(unit), Ok);
        // The other ranks begin this gather now, and the pass reports the error when it is over.
        let shards = begun.and_then(|begun| begun.wait(handling.moves())).unwrap_or_else(|error| {
            self.plan.report(error);
            let ids = self.members[unit].iter().copied().filter(|id| self.gathers(*id));
            ids.map(|id| (id, zeros((self.elements(id), self.stored[&id].dtype)))).collect()
        });
        self.sharding().begin_gather(handling.units.path(unit), shards, &self.device.clone().inner())
    }

    /// Begins to bring this rank's shards of a unit to where the ranks gather them: to the device if devices exchange
    /// them. Shards on a disk are read.
    fn fetch_shards(&self, unit: usize) -> Result<Fetching, StrategyError> {
        let (source, to) = (self.source(unit, true), self.device.clone().inner());
        match !source.is_on(&to) && self.sharding().gathers_on(&to, source.kinds.iter().map(|kind| kind.1)) {
            true => Fetching::begin(source, &to, self.handling().moves()),
            false => Ok(Fetching::there(source)),
        }
    }

    fn sharding(&self) -> &Arc<Sharding> {
        self.handling().sharding.as_ref().expect("only shards are gathered")
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

    /// Begins to gather or fetch the unit that comes after this one, and to bring the shards of the unit after that to where
    /// they are gathered.
    fn start_next(&self, unit: usize, way: Way) -> Result<(), StrategyError> {
        let [next, after] = self.next(unit, way);
        let Some(next) = next else { return Ok(()) };
        if self.is_gathered(next) && !lock(&self.ahead).contains_key(&next) {
            let gathering = self.start(next)?.uploading();
            lock(&self.ahead).insert(next, gathering);
        }
        if !lock(&self.fetching).contains_key(&next) {
            let fetching = self.fetch(next)?.map(|fetching| (next, fetching));
            lock(&self.fetching).extend(fetching);
        }
        // The shards of one rank are whole blocks.
        let is_shared = |unit: &usize| self.is_gathered(*unit) && self.sharding().is_shared();
        let Some(after) = after.filter(is_shared) else { return Ok(()) };
        if !lock(&self.ahead).contains_key(&after) && !lock(&self.shards).contains_key(&after) {
            let shards = self.fetch_shards(after)?;
            lock(&self.shards).insert(after, shards);
        }
        Ok(())
    }

    /// Predicts the next two units: forward from the order of the last pass, backward from the order of this one.
    fn next(&self, unit: usize, way: Way) -> [Option<usize>; 2] {
        let mut met = lock(&self.met);
        match way {
            Way::Only | Way::Forward => {
                let next = self.plan.come_after(met.len(), unit);
                met.push(UnitRun::of(unit, way));
                next
            }
            Way::Backward => {
                let Some(place) = met.iter().rposition(|met| met.unit == unit) else { return [None; 2] };
                met.truncate(place);
                // The backward pass ends above a unit that it does not run.
                let mut above = met.iter().rev().map_while(|met| met.returns.then_some(met.unit));
                [above.next(), above.next()]
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

impl Drop for EnteredModel {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.end_fetching();
        }
    }
}

/// A unit that the forward pass has run.
struct UnitRun {
    unit: usize,
    /// Whether the backward pass runs it again.
    returns: bool,
}

impl UnitRun {
    fn of(unit: usize, way: Way) -> Self {
        Self { unit, returns: way == Way::Forward }
    }
}
