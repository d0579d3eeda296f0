//! A segment that the plan recomputes: what its two runs need from the plan, and what they tell it.

use std::collections::HashMap;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::{Module, ParamId};
use burn::tensor::Device;
use firebrick_kernels::memory::{Beyond, in_use};

use super::budget::Cost;
use super::entered::Way;
use super::maps::{Fetch, PutAway};
use super::plan::{ReachedSegment, SegmentPlan, Which};
use super::unit::Unit;
use super::verify::{MAY_DIFFER, Random, differing};
use super::{Bundle, lock};
use crate::{Part, StrategyError};

/// A segment to recompute.
pub(crate) struct Segment {
    plan: Arc<SegmentPlan>,
    met: ReachedSegment,
    /// The unit that provides its parameters or takes its gradients.
    pub unit: Option<Unit>,
}

impl Segment {
    /// Returns the segment, if the plan recomputes it.
    pub fn recomputed<B: Module, X: Bundle>(
        plan: &Arc<SegmentPlan>,
        block: &B,
        input: &X,
        met: ReachedSegment,
        unit: Option<Unit>,
    ) -> Option<Self> {
        let is_recomputed = plan.recomputes(block, input, met);
        // Burn's graph would otherwise keep the segment's provided or unpacked parameters alive.
        let must = unit.as_ref().is_some_and(Unit::is_provided) || plan.unpacks() && met.outermost;
        (is_recomputed || must).then(|| Self { plan: plan.clone(), met, unit })
    }

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

    /// Returns the segment's name for errors and the timeline.
    pub fn name<B: Module>(&self, block: &B) -> String {
        self.plan.name_of(block, self.met.index)
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
        let before = match &self.plan.recompute {
            // The device has to complete its work, so only what the plan does not know is measured.
            Some(Which::Within(budget)) if !lock(budget).knows(self.met.id, &shape) => in_use(device),
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
        let (Some(Which::Within(budget)), Some(before)) = (&self.segment.plan.recompute, self.before) else {
            return;
        };
        if let Some(after) = in_use(self.device) {
            let kept = after.saturating_sub(before);
            lock(budget).learn(self.segment.met.id, self.shape, Cost { input: self.input, kept });
        }
    }
}
