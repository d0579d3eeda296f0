//! `Pass::segment`: runs a block as the unit of recomputation, sharding and offload; and where its parameters come from.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use burn::module::{Module, ParamId};

use super::chosen::Segment;
use super::constant::Constant;
use super::delivered::delivered;
use super::entered::Way;
use super::offloaded::OffloadedParams;
use super::plan::ReachedSegment;
use super::replay::recomputed;
use super::summed::summed;
use super::timed::BackwardTime;
use super::unit::Unit;
use crate::pass::stage::At;
use crate::{Bundle, Pass, map_params};
use firebrick_world::Activity;

impl Pass {
    /// Runs one block of the model on `input`.
    ///
    /// Strategies act on one segment at a time: they drop and recompute its activations, gather its parameters or fetch
    /// them. `run` may therefore be called more than once and on a copy of `block`. It must read parameters and the
    /// pass only from its arguments, and every tensor that carries a gradient (an encoder's output, for example) must
    /// be part of `input`. A segment has a single backward pass, so all of its outputs that you use must go into one
    /// loss.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// use firebrick_strategies::Pass;
    ///
    /// let device = Device::flex();
    /// let blocks = vec![LinearConfig::new(8, 8).init(&device); 3];
    /// let pass = Pass::evaluate(&device);
    /// let x = Tensor::<2>::ones([4, 8], &device);
    /// let y = blocks.iter().fold(x, |x, block| pass.segment(block, x, |block, x, _| block.forward(x)));
    /// assert_eq!(y.dims(), [4, 8]);
    /// ```
    pub fn segment<B, X, Y, F>(&self, block: &B, input: X, run: F) -> Y
    where
        B: Module + 'static,
        X: Bundle,
        Y: Bundle,
        F: Fn(&B, X, &Pass) -> Y + Send + Sync + 'static,
    {
        // A block inside another one is part of it.
        let sums = self.segment == 0 && self.sums_in_segments();
        let run = move |block: &B, input: X, pass: &Pass| {
            let summed = sums.then(|| summed(block, pass)).flatten();
            run(summed.as_ref().unwrap_or(block), input, pass)
        };
        let index = self.segments.fetch_add(1, Relaxed) as usize;
        let met = ReachedSegment { id: self.next_site(), index, outermost: self.segment == 0 };
        let Some((stage, at)) = self.place_in_stage(block, index) else {
            let sent = self.block_of_all(block);
            return self.run_segment(sent.as_ref().unwrap_or(block), input, run, met);
        };
        match at {
            At::Before => stage.skip(input, self),
            At::Inside { first, last } => {
                let input = if first { stage.read::<X, Y>(input, self) } else { input };
                let output = self.run_segment(block, input, run, met);
                if last { stage.send(output, self) } else { output }
            }
        }
    }

    /// Runs a block that this rank has.
    fn run_segment<B, X, Y, F>(&self, block: &B, input: X, run: F, met: ReachedSegment) -> Y
    where
        B: Module + 'static,
        X: Bundle,
        Y: Bundle,
        F: Fn(&B, X, &Pass) -> Y + Send + Sync + 'static,
    {
        if !self.entered.as_ref().is_some_and(|entered| entered.is_provided()) {
            self.plan.wake_segment(block);
        }
        let index = met.index;
        let unit = self.entered.as_ref().filter(|_| !self.inside_unit);
        let unit = unit.and_then(|entered| Unit::of(entered, block));
        let inside_unit = self.inside_unit || unit.is_some();
        // A block inside one that runs again gathers nothing again either.
        let gathered = (self.segment == 0 || self.gathered.is_some()).then(Arc::default);
        let inside = Self { segment: met.id, inside_unit, unread: false, gathered, ..self.again() };
        // Without autodiff there are no activations to recompute.
        let keeps = self.training && self.recorded && self.device.is_autodiff();
        let name = || self.plan.name_of(block, index);
        if !keeps {
            let provided = unit.filter(Unit::is_provided).map(|unit| unit.provide(block, Way::Only));
            let provided = provided.map(|block| self.lift_block(block));
            let _span = self.timeline.span(Activity::Forward, name);
            return run(provided.as_ref().unwrap_or(block), input, &inside);
        }
        if let Some(segment) = Segment::recomputed(&self.plan, block, &input, met, unit.clone()) {
            return recomputed(block, input, run, inside, segment);
        }
        let time = BackwardTime::of(&self.timeline, name);
        let input = match &time {
            Some(time) => time.input(input, self),
            None => input,
        };
        let span = self.timeline.span(Activity::Forward, name);
        let output = match unit.filter(Unit::is_delivered) {
            Some(unit) => delivered(block, input, run, inside, unit, time.clone()),
            None => run(block, input, &inside),
        };
        drop(span);
        match time {
            Some(time) => time.output(output, self),
            None => output,
        }
    }

    /// Creates a pass like this one that reads parameters of blocks which have no value from `offloaded`. What it learns
    /// about segments stays separate.
    pub fn reading(&self, offloaded: Arc<dyn OffloadedParams>) -> Self {
        Self { plan: Arc::new(self.plan.reading(offloaded)), root: None, ..self.again() }
    }

    /// Returns whether segments provide this parameter: a strategy keeps it elsewhere than where the pass computes.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::Device};
    /// use firebrick_strategies::{Composition, Offload, Setup};
    ///
    /// let device = Device::flex().autodiff();
    /// let [block, head] = [3, 2].map(|outputs| LinearConfig::new(3, outputs).init(&device));
    /// let (inside, outside) = (block.weight.id, head.weight.id);
    /// let model = (vec![block], head);
    /// let mut setup = Setup::new(&model, &device);
    /// Offload::parameters().start(&mut setup)?;
    /// let pass = setup.into_pass();
    /// assert!(pass.provides(inside) && !pass.provides(outside));
    /// # Ok::<(), firebrick_strategies::StrategyError>(())
    /// ```
    pub fn provides(&self, id: ParamId) -> bool {
        self.plan.provides(id)
    }

    /// Lifts a block outside autodiff into this pass, as constants.
    fn lift_block<B: Module>(&self, block: B) -> B {
        if self.device.is_autodiff() { map_params(block, &mut Constant(self)) } else { block }
    }
}
