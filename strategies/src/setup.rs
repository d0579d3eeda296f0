//! What a strategy sees when it starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::module::Module;
use burn::tensor::{Device, FloatDType};

use crate::{Communicator, Pass, SegmentPlan, StrategyError};

/// The model, the device, and what the strategies written so far do to the gradients.
///
/// Strategies start in the order in which gradients will meet them, so each learns from here what
/// has happened to the gradients before it, and an order that would give a wrong number is refused.
#[derive(Debug)]
pub struct Setup<'a, M> {
    model: &'a M,
    device: &'a Device,
    window: Option<usize>,
    replica: Option<FloatDType>,
    evaluation: Option<FloatDType>,
    whole_window: Option<&'static str>,
    /// What meets gradients before whatever starts next.
    meets_gradients: Vec<&'static str>,
    reduces: Option<&'static str>,
    shards_master: bool,
    /// What keeps the master on the host, and whether it keeps the replica there too.
    offloads: Option<(&'static str, bool)>,
    /// Whether gradients of a window are held on the host.
    holds_on_host: bool,
    averaged: bool,
    segments: SegmentPlan,
    world: Communicator,
    master_is_away: Arc<AtomicBool>,
    gradients_land: Arc<AtomicBool>,
    places_master: bool,
}

impl<'a, M> Setup<'a, M> {
    /// Nothing composed yet.
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

    /// As one of several ranks.
    pub fn among(self, world: Communicator) -> Self {
        Self { world, ..self }
    }

    /// This rank among all.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Whether the master lives elsewhere than the replica, once all strategies have started.
    pub fn master_is_away(&self) -> Arc<AtomicBool> {
        self.master_is_away.clone()
    }

    /// Whether gradients that are summed over the ranks go straight to the host from there, once all
    /// strategies have started: nothing between reads them on the device.
    pub(crate) fn gradients_land(&self) -> Arc<AtomicBool> {
        self.gradients_land.clone()
    }

    /// Declares that the strategy brings each parameter to where the master is kept when it
    /// [owns](crate::Stage::init_master) the model, one after the other. Until then the model may be anywhere, and
    /// need not fit on the device.
    pub fn place_master(&mut self) {
        self.places_master = true;
    }

    /// Whether a strategy [places](Self::place_master) the master.
    pub fn places_master(&self) -> bool {
        self.places_master
    }

    /// The model as the user gave it, where that is; without a strategy that
    /// [places](Self::place_master) the master, on the device.
    pub fn model(&self) -> &'a M {
        self.model
    }

    /// The device that the forward pass runs on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Micro-batches in a window: 1 unless a strategy accumulates.
    pub fn window(&self) -> usize {
        self.window.unwrap_or(1)
    }

    /// Whether a strategy sums the micro-batches of a window. Without one, only the gradients of a single
    /// micro-batch can make an update.
    pub fn sums_micro_batches(&self) -> bool {
        self.window.is_some()
    }

    /// The dtype of the replica, where a strategy has declared it.
    pub fn replica(&self) -> Option<FloatDType> {
        self.replica
    }

    /// What is decided so far about the segments of the model.
    pub fn segments(&self) -> &SegmentPlan {
        &self.segments
    }

    pub(crate) fn segments_mut(&mut self) -> &mut SegmentPlan {
        &mut self.segments
    }

    /// A training pass as all strategies together want it, once they have started.
    pub fn into_pass(self) -> Pass {
        let device = match self.segments.is_elementwise() && self.device.is_autodiff() {
            true => self.device.clone().gradient_checkpointing(),
            false => self.device.clone(),
        };
        let dtype = self.training_dtype();
        Pass::train(&device).planned(Arc::new(self.segments)).computing_in(dtype)
    }

    /// The dtype that training computes in: the replica's, or else f32.
    pub fn training_dtype(&self) -> FloatDType {
        self.replica.unwrap_or(FloatDType::F32)
    }

    /// The dtype that evaluation computes in: training's, unless a strategy has declared another.
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
    /// Something accumulates already, or something before this needs the whole window.
    pub fn accumulate(&mut self, strategy: &'static str, micro_batches: usize) -> Result<(), StrategyError> {
        self.still_partial(strategy, "it would see each micro-batch by itself, not the window")?;
        self.meets_gradients.push(strategy);
        self.holds_on_host = self.offloads.is_some();
        match self.window.replace(micro_batches) {
            None => Ok(()),
            Some(_) => Err(StrategyError::Twice(strategy)),
        }
    }

    /// Declares that `strategy` keeps the replica, and so the gradients before it, in `dtype`.
    ///
    /// # Errors
    ///
    /// A replica dtype is declared already, or something before this needs finished gradients.
    pub fn cast_replica(&mut self, strategy: &'static str, dtype: FloatDType) -> Result<(), StrategyError> {
        self.still_partial(strategy, "it would see gradients that are not yet those of the f32 master")?;
        self.meets_gradients.push(strategy);
        match self.replica.replace(dtype) {
            None => Ok(()),
            Some(_) => Err(StrategyError::Twice(strategy)),
        }
    }

    /// Declares that `strategy` has [weights to evaluate](crate::Stage::averaged) instead of the master.
    ///
    /// # Errors
    ///
    /// Something has such weights already.
    pub fn average(&mut self, strategy: &'static str) -> Result<(), StrategyError> {
        match std::mem::replace(&mut self.averaged, true) {
            false => Ok(()),
            true => Err(StrategyError::Twice(strategy)),
        }
    }

    /// Declares that `strategy` is right only on the whole window's gradients, in f32: what sums or
    /// casts must stand before it.
    pub fn needs_whole_window(&mut self, strategy: &'static str) {
        self.whole_window.get_or_insert(strategy);
        self.meets_gradients.push(strategy);
    }

    /// Declares that `strategy` sums gradients over the ranks; in stages 2 and 3 of ZeRO, in the backward
    /// pass.
    ///
    /// # Errors
    ///
    /// Something sums them already, or something before this needs the sum; or, in the backward pass,
    /// anything before this would meet gradients that are elsewhere.
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

    /// Declares that `strategy` keeps the master on the host, and with `parameters` the replica too. Where
    /// nothing stands before it but what sums gradients over ranks, blocks hand their gradients to it in the
    /// backward pass.
    ///
    /// # Errors
    ///
    /// Something does so already; or, with `parameters`, something before this would meet gradients that
    /// are elsewhere.
    pub fn offload(&mut self, strategy: &'static str, parameters: bool) -> Result<(), StrategyError> {
        if self.offloads.replace((strategy, parameters)).is_some() {
            return Err(StrategyError::Twice(strategy));
        }
        let sums: Vec<_> = self.reduces.into_iter().collect();
        match (self.meets_first(strategy, &sums), parameters) {
            (Err(error), true) => return Err(error),
            (Err(_), false) => (),
            // Whole gradients are summed first, where they are summed at the end of the pass.
            (Ok(()), _) => {
                // What sums behind this one finds them on the host, and keeps them with the others.
                self.gradients_land.store(self.reduces.is_some(), Relaxed);
                let sums_later = self.reduces.is_some() && !self.segments.handling().reduces();
                self.segments.offload(parameters, !sums_later);
            }
        }
        self.meets_gradients.push(strategy);
        self.master_is_away.store(true, Relaxed);
        Ok(())
    }

    /// Whether the master is kept on the host, whether the replica is, and whether what is held of a window's
    /// gradients is.
    pub fn on_host(&self) -> [bool; 3] {
        let (master, replica) = self.offloads.map_or((false, false), |(_, parameters)| (true, parameters));
        [master, replica, self.holds_on_host]
    }

    /// Whether each rank updates its part of each parameter.
    pub fn shards_master(&self) -> bool {
        self.shards_master
    }

    /// What sums gradients over the ranks, if something does.
    pub fn sums_over_ranks(&self) -> Option<&'static str> {
        self.reduces
    }

    /// That nothing stands before it but `allowed`.
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
