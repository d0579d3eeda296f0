//! What a strategy sees when it starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use firebrick_world::Communicator;

use crate::{Pass, SegmentPlan, StrategyError};

/// The model, the device, and what the strategies so far do to the gradients.
///
/// Strategies start in the order in which gradients pass through them. Each one reads here what happens to the
/// gradients before it, and rejects an order that would give a wrong result.
#[derive(Debug)]
pub struct Setup<'a, M> {
    model: &'a M,
    device: &'a Device,
    window: Option<usize>,
    replica: Option<FloatDType>,
    evaluation: Option<FloatDType>,
    whole_window: Option<&'static str>,
    /// The strategies that gradients pass through before the next one to start.
    meets_gradients: Vec<&'static str>,
    reduces: Option<&'static str>,
    shards_master: bool,
    /// The strategy that keeps the master on the host, and whether it keeps the replica there too.
    offloads: Option<(&'static str, bool)>,
    /// Whether a window's gradients are held on the host.
    holds_on_host: bool,
    averaged: bool,
    segments: SegmentPlan,
    world: Communicator,
    master_is_away: Arc<AtomicBool>,
    gradients_land: Arc<AtomicBool>,
    places_master: bool,
}

impl<'a, M> Setup<'a, M> {
    /// Creates a setup without strategies, on one rank.
    pub fn new(model: &'a M, device: &'a Device) -> Self
    where
        M: Module,
    {
        Self {
            model,
            device,
            window: None,
            replica: None,
            evaluation: None,
            whole_window: None,
            meets_gradients: Vec::new(),
            reduces: None,
            shards_master: false,
            offloads: None,
            holds_on_host: false,
            averaged: false,
            segments: SegmentPlan::of(model),
            world: Communicator::solo(),
            master_is_away: Arc::default(),
            gradients_land: Arc::default(),
            places_master: false,
        }
    }

    /// Sets the communicator of a rank that is one of several.
    pub fn among(self, world: Communicator) -> Self {
        Self { world, ..self }
    }

    /// Returns this rank's communicator.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Returns a flag that is true if the master is on another device than the replica. Read it once all strategies
    /// have started.
    pub fn master_is_away(&self) -> Arc<AtomicBool> {
        self.master_is_away.clone()
    }

    /// Returns a flag that is true if the gradients summed over the ranks go straight to the host, because no strategy
    /// in between reads them on the device. Read it once all strategies have started.
    pub(crate) fn gradients_land(&self) -> Arc<AtomicBool> {
        self.gradients_land.clone()
    }

    /// Declares that the strategy moves each parameter to the master's device in
    /// [`init_master`](crate::MasterStage::init_master), one parameter at a time. Before that the model may be on any device,
    /// and need not fit on the training device.
    pub fn place_master(&mut self) {
        self.places_master = true;
    }

    /// Returns whether a strategy [places](Self::place_master) the master.
    pub fn places_master(&self) -> bool {
        self.places_master
    }

    /// Returns the model, on the device where the user created it, or on the training device if no strategy
    /// [places](Self::place_master) the master.
    pub fn model(&self) -> &'a M {
        self.model
    }

    /// Returns the device that the forward pass runs on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Returns the number of micro-batches in a window: 1 unless a strategy accumulates.
    pub fn window(&self) -> usize {
        self.window.unwrap_or(1)
    }

    /// Returns whether a strategy sums the micro-batches of a window. Without such a strategy, an update uses the
    /// gradients of exactly one micro-batch.
    pub fn sums_micro_batches(&self) -> bool {
        self.window.is_some()
    }

    /// Returns the dtype of the replica, if a strategy has declared it.
    pub fn replica(&self) -> Option<FloatDType> {
        self.replica
    }

    /// Returns the plan for the model's segments, as decided so far.
    pub fn segments(&self) -> &SegmentPlan {
        &self.segments
    }

    pub(crate) fn segments_mut(&mut self) -> &mut SegmentPlan {
        &mut self.segments
    }

    /// Creates the training pass for all strategies together, once they have started.
    pub fn into_pass(self) -> Pass {
        let device = match self.segments.is_elementwise() && self.device.is_autodiff() {
            true => self.device.clone().gradient_checkpointing(),
            false => self.device.clone(),
        };
        let dtype = self.training_dtype();
        Pass::train(&device).planned(Arc::new(self.segments)).computing_in(dtype)
    }

    /// Returns the dtype that training computes in: the replica's, or f32 by default.
    pub fn training_dtype(&self) -> FloatDType {
        self.replica.unwrap_or(FloatDType::F32)
    }

    /// Returns the dtype that evaluation computes in: the training dtype, unless a strategy declares another one.
    pub fn evaluation_dtype(&self) -> FloatDType {
        self.evaluation.unwrap_or(self.training_dtype())
    }

    /// Declares that evaluation computes in `dtype`.
    pub fn evaluate_in(&mut self, dtype: FloatDType) {
        self.evaluation = Some(dtype);
    }

    /// Declares that `strategy` sums `micro_batches` into one window.
    ///
    /// # Errors
    ///
    /// Another strategy accumulates already, or an earlier strategy needs the whole window.
    pub fn accumulate(&mut self, strategy: &'static str, micro_batches: usize) -> Result<(), StrategyError> {
        self.still_partial(strategy, "it would see each micro-batch by itself, not the window")?;
        self.meets_gradients.push(strategy);
        self.holds_on_host = self.offloads.is_some();
        match self.window.replace(micro_batches) {
            None => Ok(()),
            Some(_) => Err(StrategyError::Twice(strategy)),
        }
    }

    /// Declares that `strategy` keeps the replica, and therefore the gradients before it, in `dtype`.
    ///
    /// # Errors
    ///
    /// A replica dtype is declared already, or an earlier strategy needs complete gradients.
    pub fn cast_replica(&mut self, strategy: &'static str, dtype: FloatDType) -> Result<(), StrategyError> {
        self.still_partial(strategy, "it would see gradients that are not yet those of the f32 master")?;
        self.meets_gradients.push(strategy);
        match self.replica.replace(dtype) {
            None => Ok(()),
            Some(_) => Err(StrategyError::Twice(strategy)),
        }
    }

    /// Declares that `strategy` provides [weights to evaluate](crate::AverageStage::averaged) instead of the master.
    ///
    /// # Errors
    ///
    /// Another strategy provides such weights already.
    pub fn average(&mut self, strategy: &'static str) -> Result<(), StrategyError> {
        match std::mem::replace(&mut self.averaged, true) {
            false => Ok(()),
            true => Err(StrategyError::Twice(strategy)),
        }
    }

    /// Declares that `strategy` needs the whole window's gradients in f32. Strategies that sum or cast gradients must
    /// come before it.
    pub fn needs_whole_window(&mut self, strategy: &'static str) {
        self.whole_window.get_or_insert(strategy);
        self.meets_gradients.push(strategy);
    }

    /// Declares that `strategy` sums gradients over the ranks, in the backward pass for ZeRO stages 2 and 3.
    ///
    /// # Errors
    ///
    /// Another strategy sums them already, or an earlier strategy needs the sum. In stages 2 and 3: any strategy comes
    /// before this one, because the backward pass takes the gradients before that strategy could meet them.
    pub fn reduce_gradients(&mut self, strategy: &'static str, stage: u8) -> Result<(), StrategyError> {
        self.still_partial(strategy, "it would see the gradients of one rank, not their sum")?;
        if self.reduces.is_some() {
            return Err(StrategyError::Twice(strategy));
        }
        if stage >= 2 {
            self.meets_first(strategy, &[])?;
        }
        self.meets_gradients.push(strategy);
        self.shards_master = stage > 0;
        self.reduces = Some(strategy);
        Ok(())
    }

    /// Declares that `strategy` keeps the master on the host, and with `parameters` the replica too. If no strategy
    /// comes before it, except one that sums gradients over the ranks, blocks pass their gradients to it during the
    /// backward pass.
    ///
    /// # Errors
    ///
    /// Another strategy offloads already; or, with `parameters`, an earlier strategy would not meet the gradients that
    /// the backward pass takes.
    pub fn offload(&mut self, strategy: &'static str, parameters: bool) -> Result<(), StrategyError> {
        if self.offloads.replace((strategy, parameters)).is_some() {
            return Err(StrategyError::Twice(strategy));
        }
        let sums: Vec<_> = self.reduces.into_iter().collect();
        match (self.meets_first(strategy, &sums), parameters) {
            (Err(error), true) => return Err(error),
            (Err(_), false) => (),
            // Gradients that are summed at the end of the pass are summed whole before they are offloaded.
            (Ok(()), _) => {
                // A strategy that sums after this one finds the gradients on the host and keeps the sum there.
                self.gradients_land.store(self.reduces.is_some(), Relaxed);
                let sums_later = self.reduces.is_some() && !self.segments.handling().reduces();
                self.segments.offload(parameters, !sums_later);
            }
        }
        self.meets_gradients.push(strategy);
        self.master_is_away.store(true, Relaxed);
        Ok(())
    }

    /// Returns whether the master, the replica and the held gradients of a window are on the host, in this order.
    pub fn on_host(&self) -> [bool; 3] {
        let (master, replica) = self.offloads.map_or((false, false), |(_, parameters)| (true, parameters));
        [master, replica, self.holds_on_host]
    }

    /// Returns whether each rank updates only its shard of each parameter.
    pub fn shards_master(&self) -> bool {
        self.shards_master
    }

    /// Returns the strategy that sums gradients over the ranks, if any.
    pub fn sums_over_ranks(&self) -> Option<&'static str> {
        self.reduces
    }

    /// Checks that gradients pass only through `allowed` strategies before `then`.
    fn meets_first(&self, then: &'static str, allowed: &[&str]) -> Result<(), StrategyError> {
        match self.meets_gradients.iter().find(|first| !allowed.contains(first)) {
            None => Ok(()),
            Some(first) => Err(StrategyError::BackwardOrder { first, then }),
        }
    }

    fn still_partial(&self, then: &'static str, why: &'static str) -> Result<(), StrategyError> {
        match self.whole_window {
            None => Ok(()),
            Some(first) => Err(StrategyError::Order { first, then, why }),
        }
    }
}
