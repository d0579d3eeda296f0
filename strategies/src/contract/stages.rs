//! The live state of a composition: a list of stages, and each way through it.

use std::fmt::{self, Debug, Formatter};

use burn::module::ParamId;
use burn::tensor::Tensor;

use crate::{Grads, Outcome, Publishes, SavedStates, Settled, Shard, Stage, StageState, StrategyError};

/// The stages of a composition, in the [order](crate::Order) of its strategies.
///
/// Gradients pass through the stages in this order, and so does the model on its way to the master. The way from the
/// master to a replica or to a whole model is the reverse.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{DType, Device}};
/// use firebrick_strategies::{Accumulate, Amp, Composed, Composition, Setup};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let mut stages = Composed::new().with(Amp::bf16()).with(Accumulate(2)).start(&mut Setup::new(&model, &device))?;
/// let master = stages.init_master(model)?;
/// let replica = stages.publish(master)?;
/// assert_eq!(replica.weight.val().dtype(), DType::BF16);
/// assert_eq!(format!("{stages:?}"), r#"["Amp", "Accumulate"]"#);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
pub struct Stages<M>(Vec<Box<dyn Stage<M>>>);

impl<M> Stages<M> {
    /// Creates a list without stages, which changes nothing.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Creates a list of one stage.
    pub fn of(stage: impl Stage<M> + 'static) -> Self {
        Self(vec![Box::new(stage)])
    }

    /// Appends the stages of the strategies that follow.
    pub fn then(mut self, stages: Self) -> Self {
        self.0.extend(stages.0);
        self
    }

    /// Turns the model into the master, once, before the first step.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if a stage shards the model among ranks.
    pub fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        self.0.iter_mut().try_fold(model, |model, stage| stage.init_master(model))
    }

    /// Turns the master into the replica, in reverse order.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if a stage gathers the master from several ranks.
    pub fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        publish(&mut self.0, master)
    }

    /// Returns whether the last stages [publish parameters by themselves](Publishes::Each). Then
    /// [`publish_each`](Self::publish_each) and [`publish_rest`](Self::publish_rest) may replace [`publish`](Self::publish).
    pub fn publishes_each(&self) -> bool {
        let last = self.0.iter().rev().map(|stage| stage.publishes()).find(|how| *how != Publishes::Nothing);
        last == Some(Publishes::Each)
    }

    /// Publishes some parameters by themselves, each flat and outside autodiff, as far as stages can: in reverse order,
    /// up to the first one that publishes all parameters together.
    ///
    /// # Errors
    ///
    /// The device has failed.
    pub fn publish_each(
        &mut self,
        mut params: Vec<(ParamId, Tensor<1>)>,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        for stage in self.0.iter_mut().rev().take_while(|stage| stage.publishes() != Publishes::Together) {
            params = stage.publish_each(params)?;
        }
        Ok(params)
    }

    /// Turns the model whose parameters [`publish_each`](Self::publish_each) has returned into the replica, by the
    /// remaining stages.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    pub fn publish_rest(&mut self, published: M) -> Result<M, StrategyError> {
        match self.0.iter().rposition(|stage| stage.publishes() == Publishes::Together) {
            Some(last) => publish(&mut self.0[..=last], published),
            None => Ok(published),
        }
    }

    /// Returns the model that evaluation reads, given the master and its published replica, in reverse order.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    pub fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError>
    where
        M: Clone,
    {
        let mut evaluated = replica;
        for at in (0..self.0.len()).rev() {
            let (stage, later) = self.0[at..].split_first_mut().expect("`at` is one of the stages");
            evaluated = match stage.evaluates_master() {
                true => stage.evaluator(&published(later, master)?, evaluated)?,
                false => stage.evaluator(master, evaluated)?,
            };
        }
        Ok(evaluated)
    }

    /// Returns the part of a parameter that the master holds on this rank; `None` means all of it.
    pub fn shard(&self, parameter: ParamId) -> Option<Shard> {
        self.0.iter().find_map(|stage| stage.shard(parameter))
    }

    /// Returns the master to keep between two updates, once the replica exists, in reverse order: views of the replica
    /// where both hold the same values.
    pub fn alias_master(&mut self, master: M, replica: &M) -> M {
        self.0.iter_mut().rev().fold(master, |master, stage| stage.alias_master(master, replica))
    }

    /// Returns the master in tensors of its own, before an update and after the replica is dropped.
    pub fn unalias_master(&mut self, master: M) -> M {
        self.0.iter_mut().fold(master, |master, stage| stage.unalias_master(master))
    }

    /// Gathers the master into one whole model to save, in reverse order: on `root` only, or on every rank if `root` is
    /// `None`. Every rank must call it.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    pub fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        self.0.iter_mut().rev().try_fold(Some(master), |master, stage| match master {
            Some(master) => stage.gather_full(master, root),
            None => Ok(None),
        })
    }

    /// Receives the current master: before the first step, and after each applied update, before it is
    /// [published](Self::publish).
    pub fn updated(&mut self, master: &M) {
        self.0.iter_mut().for_each(|stage| stage.updated(master));
    }

    /// Returns the weights to evaluate and save instead of the master, if a stage has any.
    pub fn averaged(&self) -> Option<M> {
        self.0.iter().filter(|stage| stage.averages()).find_map(|stage| stage.averaged())
    }

    /// Hands the weights of a saved run to the stage that [averages](Self::averaged). Runs after
    /// [`restore`](Self::restore).
    pub fn resume_average(&mut self, averaged: M) {
        if let Some(stage) = self.0.iter_mut().find(|stage| stage.averages() && stage.averaged().is_some()) {
            stage.resume_average(averaged);
        }
    }

    /// Returns the factor by which to multiply the loss before the backward pass: the product of all stages' scales, or
    /// `None` if no stage scales it. It is constant within an optimizer step.
    pub fn loss_scale(&self) -> Option<f64> {
        self.0.iter().filter_map(|stage| stage.loss_scale()).reduce(|scale, other| scale * other)
    }

    /// Turns the gradients of the replica, from one micro-batch, into gradients of the master.
    ///
    /// If a stage skips the step, the stages after it still take part with gradients that say so, since their ranks
    /// may wait for one another.
    ///
    /// # Errors
    ///
    /// Training cannot continue, or a stage [holds](StrategyError::Held) the gradients of a complete step.
    pub fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let (closes, agreement) = (grads.closes(), grads.agreement().cloned());
        let mut skips = None;
        let mut next = grads;
        for stage in &mut self.0 {
            next = match stage.collect(master, next.agreeing(agreement.clone()))? {
                Outcome::Apply(grads) => grads,
                Outcome::Skip(reason) => Grads::skipped(skips.insert(reason).clone(), closes),
                Outcome::Hold if closes => return Err(StrategyError::Held(stage.name())),
                Outcome::Hold => return Ok(Outcome::Hold),
            };
        }
        Ok(match skips {
            Some(reason) => Outcome::Skip(reason),
            None => Outcome::Apply(next),
        })
    }

    /// Returns the bytes of the gradients that the stages hold between two micro-batches of an optimizer step.
    pub fn held_bytes(&self) -> usize {
        self.0.iter().map(|stage| stage.held_bytes()).sum()
    }

    /// Returns whether a stage keeps an average of the master.
    pub fn keeps_average(&self) -> bool {
        self.0.iter().any(|stage| stage.averages())
    }

    /// Returns the [loss scale](Self::loss_scale) of the next step, should this one end so.
    pub fn loss_scale_after(&self, settled: &Settled) -> Option<f64> {
        let scales = self.0.iter().filter_map(|stage| stage.loss_scale_after(settled));
        scales.reduce(|scale, other| scale * other)
    }

    /// Receives the outcome of an optimizer step. Runs once after every step, before gradients of the next one are
    /// collected.
    ///
    /// # Errors
    ///
    /// Training cannot continue.
    pub fn after_step(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        self.0.iter_mut().try_for_each(|stage| stage.after_step(settled))
    }

    /// Returns the states that must survive a restart, one per stage. Runs only between optimizer steps.
    pub fn save(&self) -> Vec<StageState> {
        self.0.iter().map(|stage| stage.save(StageState::new(stage.name()))).collect()
    }

    /// Restores the states that [`save`](Self::save) returned.
    ///
    /// # Errors
    ///
    /// The states were saved by other strategies, in another order, or with settings that they do not fit.
    pub fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        self.0.iter_mut().try_for_each(|stage| {
            let state = states.take(stage.name())?;
            stage.restore(&state)
        })
    }
}

/// Turns a master into what these stages publish, in reverse order.
fn publish<M>(stages: &mut [Box<dyn Stage<M>>], master: M) -> Result<M, StrategyError> {
    let mut publishing = stages.iter_mut().rev().filter(|stage| stage.publishes() != Publishes::Nothing);
    publishing.try_fold(master, |master, stage| stage.publish(master))
}

/// Returns a master as these stages publish it, once more: what is on its way from other ranks has come.
fn published<M: Clone>(stages: &mut [Box<dyn Stage<M>>], master: &M) -> Result<M, StrategyError> {
    let published = publish(stages, master.clone())?;
    // No later update may take these parameters for its own.
    drop(
        stages.iter_mut().rev().fold(master.clone(), |master, stage| stage.alias_master(master, &published)),
    );
    Ok(published)
}

/// Prints the names of the stages.
impl<M> Debug for Stages<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|stage| stage.name())).finish()
    }
}

#[cfg(test)]
#[path = "stages_tests.rs"]
mod tests;
