//! What a strategy sees when it starts.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, FloatDType};

use crate::{Pass, SegmentPlan, StrategyError};

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
    segments: SegmentPlan,
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
            segments: SegmentPlan::of(model),
        }
    }

    /// The model as the user gave it.
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
        match self.replica.replace(dtype) {
            None => Ok(()),
            Some(_) => Err(StrategyError::Twice(strategy)),
        }
    }

    /// Declares that `strategy` is right only on the whole window's gradients, in f32: what sums or
    /// casts must stand before it.
    pub fn needs_whole_window(&mut self, strategy: &'static str) {
        self.whole_window.get_or_insert(strategy);
    }

    fn still_partial(&self, then: &'static str, why: &'static str) -> Result<(), StrategyError> {
        match self.whole_window {
            None => Ok(()),
            Some(first) => Err(StrategyError::Order { first, then, why }),
        }
    }
}
