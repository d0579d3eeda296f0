//! The decisions of strategies about the segments of a model.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use burn::backend::DispatchTensor;
use burn::module::{Module, ParamId};
use burn::tensor::Device;

use super::budget::{Budget, Cost};
use super::entered::Way;
use super::maps::{Fetch, PutAway, shape_of};
use super::unit::Unit;
use super::units::{Handling, Units};
use super::verify::{MAY_DIFFER, Random, differing};
use super::{Bundle, lock};
use crate::zero::{Part, Sharding};
use crate::{Paths, StrategyError};
use firebrick_kernels::memory::{Beyond, in_use};

/// The decisions of strategies about the segments of a model, and what training has learned about the segments.
///
/// Strategies fill it in when they start; the pass reads it at each segment.
#[derive(Debug, Default)]
pub struct SegmentPlan {
    recompute: Option<Which>,
    host: Option<Device>,
    elementwise: bool,
    handling: Handling,
    /// The units in the order in which the last pass reached them.
    order: Mutex<Vec<usize>>,
    paths: Paths,
    verified: Mutex<HashSet<u64>>,
    fault: Mutex<Option<StrategyError>>,
}

/// The segments to recompute.
#[derive(Debug)]
pub(crate) enum Which {
    /// The first of every `n` segments.
    Every(usize),
    /// The segments of blocks at these paths.
    Paths(HashSet<String>),
    /// As few as possible, so that the others fit.
    Within(Mutex<Budget>),
}

/// A segment that a pass reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    /// Its id, the same in each pass over the same model.
    pub id: u64,
    /// Its index among the segments of its level, from 0.
    pub index: usize,
    /// Whether it is in no other segment.
    pub outermost: bool,
}

/// A segment to recompute.
pub(crate) struct Segment {
    plan: Arc<SegmentPlan>,
    met: Met,
    /// The unit that provides its parameters or takes its gradients.
    pub unit: Option<Unit>,
}

impl Which {
    pub fn within(bytes: usize) -> Self {
        Self::Within(Mutex::new(Budget::new(bytes)))
    }
}

impl SegmentPlan {
    /// Creates a plan that leaves every segment unchanged.
    pub fn of<M: Module>(model: &M) -> Self {
        Self { paths: Paths::of(model), ..Self::default() }
    }

    /// Copies the decisions, without the knowledge about segments.
    pub(crate) fn afresh(&self) -> Self {
        let recompute = self.recompute.as_ref().map(|which| match which {
            Which::Every(count) => Which::Every(*count),
            Which::Paths(paths) => Which::Paths(paths.clone()),
            Which::Within(budget) => Which::within(lock(budget).bytes()),
        });
        let (host, elementwise, paths) = (self.host.clone(), self.elementwise, self.paths.clone());
        Self { recompute, host, elementwise, paths, handling: self.handling.clone(), ..Self::default() }
    }

    /// Returns the paths of the model's parameters and modules.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Returns whether to use Burn's own element-wise scheme.
    pub fn is_elementwise(&self) -> bool {
        self.elementwise
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.recompute.is_some() || self.elementwise
    }

    pub(crate) fn recompute(&mut self, which: Which, host: Option<Device>) {
        self.recompute = Some(which);
        self.host = host;
    }

    pub(crate) fn recompute_elementwise(&mut self) {
        self.elementwise = true;
    }

    /// Returns how the parameters of blocks are handled.
    pub(crate) fn handling(&self) -> &Handling {
        &self.handling
    }

    /// Sums the gradients of blocks over the ranks in the backward pass, and with `gathers` gathers the blocks'
    /// parameters for their segments.
    pub(crate) fn shard(&mut self, units: Units, sharding: Arc<Sharding>, gathers: bool) {
        self.handling.units = units;
        self.handling.sharding = Some(sharding);
        self.handling.gathers = gathers;
    }

    /// With `lands`, moves the gradients of blocks to the host in the backward pass; with `fetches`, keeps their
    /// parameters there.
    pub(crate) fn offload(&mut self, fetches: bool, lands: bool) {
        if self.handling.units.count() == 0 && (fetches || lands) {
            let blocks: Vec<_> = self.paths.blocks().map(str::to_string).collect();
            self.handling.units = Units::of(&self.paths, &blocks);
        }
        self.handling.fetches = fetches;
        self.handling.lands = lands;
    }

    /// Predicts the unit after this one, which was reached at `place` of the pass: the one that followed in the last
    /// pass.
    pub(crate) fn comes_after(&self, place: usize, unit: usize) -> Option<usize> {
        let mut order = lock(&self.order);
        let next = match order.get(place) == Some(&unit) {
            true => order.get(place + 1).copied(),
            false => None,
        };
        if next.is_none() {
            order.truncate(place);
            order.push(unit);
        }
        next
    }

    /// Returns an error if a segment makes it pointless to continue, once.
    ///
    /// A model's forward pass returns no error, so call this before you use its gradients.
    ///
    /// # Errors
    ///
    /// A segment read a tracked tensor that is not part of its input, or gave another result when it was recomputed; no
    /// choice of segments fits the budget; a parameter of a block was read outside its segment; another rank is gone.
    pub fn check(&self) -> Result<(), StrategyError> {
        lock(&self.fault).take().map_or(Ok(()), Err)
    }

    pub(crate) fn report(&self, fault: StrategyError) {
        lock(&self.fault).get_or_insert(fault);
    }

    /// Returns the segment, if it is to be recomputed.
    pub(crate) fn recomputed<B, X>(
        self: &Arc<Self>,
        block: &B,
        input: &X,
        met: Met,
        unit: Option<Unit>,
    ) -> Option<Segment>
    where
        B: Module,
        X: Bundle,
    {
        let path = || self.paths.module_of(block);
        let is_recomputed = match &self.recompute {
            None => false,
            Some(which) => self.chooses(which, path, input, met),
        };
        // Burn's graph would otherwise keep the segment's provided parameters alive.
        let must = unit.as_ref().is_some_and(Unit::is_provided);
        (is_recomputed || must).then(|| Segment { plan: self.clone(), met, unit })
    }

    fn chooses<'a, X: Bundle>(
        &self,
        which: &Which,
        path: impl Fn() -> Option<&'a str>,
        input: &X,
        met: Met,
    ) -> bool {
        match which {
            Which::Every(count) => met.index.is_multiple_of(*count),
            Which::Paths(paths) => path().is_some_and(|path| paths.contains(path)),
            Which::Within(_) if !met.outermost => false,
            Which::Within(budget) => {
                let mut budget = lock(budget);
                budget.recomputes(met.id, &shape_of(input)).unwrap_or_else(|needs| {
                    self.report(StrategyError::Budget { budget: budget.bytes(), needed: needs.0 });
                    true
                })
            }
        }
    }
}

impl Segment {
    /// Returns the block with its parameters, if they are stored elsewhere.
    pub fn provided<B: Module>(&self, block: &B, way: Way) -> Option<B> {
        let unit = self.unit.as_ref().filter(|unit| unit.is_provided())?;
        Some(unit.provide(block, way))
    }

    /// Takes the gradients that the segment delivers out of those found. Returns their bytes.
    pub fn deliver<B: Module>(
        &self,
        block: &B,
        own: Vec<Part>,
        found: &mut HashMap<ParamId, DispatchTensor>,
    ) -> usize {
        let Some(unit) = self.unit.as_ref().filter(|unit| unit.is_delivered()) else { return 0 };
        let grads = own.iter().filter_map(|part| Some((part.id, found.remove(&part.id)?))).collect();
        unit.deliver(block, own, grads)
    }

    /// Returns the segment's name for errors.
    fn name<B: Module>(&self, block: &B) -> String {
        let path = self.plan.paths.module_of(block);
        path.map_or_else(|| format!("number {}", self.met.index), str::to_string)
    }

    /// Moves tensors to the device that stores them until the backward pass.
    pub fn put_away<X: Bundle>(&self, tensors: X) -> X {
        match &self.plan.host {
            None => tensors,
            Some(host) => tensors.map_tensors(&mut PutAway(host)),
        }
    }

    /// Moves tensors back.
    pub fn fetch<X: Bundle>(&self, tensors: X, device: &Device) -> X {
        match &self.plan.host {
            None => tensors,
            Some(_) => tensors.map_tensors(&mut Fetch(&device.clone().inner())),
        }
    }

    /// Records that the gradients of its parameters exist, with their bytes. The enclosing segment reports those of a
    /// nested one.
    pub fn leaves(&self, gradients: usize, device: &Device) {
        if self.met.outermost {
            Beyond::left(gradients, device);
        }
    }

    /// Reports that its result carries a gradient of a tensor outside its input.
    pub fn captures<B: Module>(&self, block: &B) {
        self.plan.report(StrategyError::Captured { segment: self.name(block) });
    }

    /// Returns whether its result must be verified: always the first time, and each time if it contains a module that
    /// may draw random numbers.
    pub fn unverified<B: Module>(&self, block: &B) -> bool {
        !lock(&self.plan.verified).contains(&self.met.id) || !Random::of(block).is_empty()
    }

    /// Compares the results of the first run and of the recomputation.
    pub fn verify<B: Module, Y: Bundle>(&self, block: &B, first: Y, again: Y) {
        let differ = differing(first, again);
        if differ > MAY_DIFFER {
            self.plan.report(StrategyError::Irreproducible {
                segment: self.name(block),
                differ: 100.0 * differ,
                hint: Random::of(block).hint(),
            });
        }
        lock(&self.plan.verified).insert(self.met.id);
    }

    /// Measures what the segment's operations save, if the plan needs it.
    pub fn meter<'a>(&'a self, shape: Vec<usize>, input: usize, device: &'a Device) -> Meter<'a> {
        let before = match self.plan.recompute {
            Some(Which::Within(_)) => in_use(device),
            _ => None,
        };
        // Inputs that are stored on another device take no memory of this one.
        let is_away = self.plan.host.as_ref().is_some_and(|host| *host != device.clone().inner());
        Meter { segment: self, shape, input: if is_away { 0 } else { input }, device, before }
    }
}

/// The bytes in use before a segment runs again.
pub(crate) struct Meter<'a> {
    segment: &'a Segment,
    shape: Vec<usize>,
    input: usize,
    device: &'a Device,
    before: Option<usize>,
}

impl Meter<'_> {
    /// Reads the bytes in use after the segment has run, with everything that it saves.
    pub fn read(self) {
        let Some(Which::Within(budget)) = &self.segment.plan.recompute else { return };
        if let (Some(before), Some(after)) = (self.before, in_use(self.device)) {
            let kept = after.saturating_sub(before);
            lock(budget).learn(self.segment.met.id, self.shape, Cost { input: self.input, kept });
        }
    }
}
