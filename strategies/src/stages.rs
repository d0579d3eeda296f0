//! The live state of a composition: a list of stages, and each way through it.

use std::fmt::{self, Debug, Formatter};

use burn::module::ParamId;
use burn::tensor::Tensor;

use crate::stage::GroupList;
use crate::{
    AverageStage, CollectStage, Grads, MasterStage, Outcome, SaveStage, SavedStates, Settled, Shard,
    ShardStage, Stage, StageState, StrategyError, WindowStage,
};

/// The stages of a composition, in the order in which you wrote its strategies.
///
/// Gradients pass through the stages in this order, and so does the model on its way to the master. The way from the
/// master to a replica or to a whole model is the reverse.
///
/// Queries take `&mut self`, because a stage lends its groups of methods mutably.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{DType, Device}};
/// use firebrick_strategies::{Accumulate, Amp, Composition, Setup, Stack};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let mut stages = Stack::new(Amp::bf16(), Accumulate(2)).start(&mut Setup::new(&model, &device))?;
/// let master = stages.init_master(model)?;
/// let replica = stages.publish(master)?;
/// assert_eq!(replica.weight.val().dtype(), DType::BF16);
/// assert_eq!(format!("{stages:?}"), r#"["Amp", "Accumulate"]"#);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
pub struct Stages<M>(Vec<Box<dyn AnyStage<M>>>);

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
        self.masters().try_fold(model, |model, stage| stage.init_master(model))
    }

    /// Turns the master into the replica, in reverse order.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if a stage gathers the master from several ranks.
    pub fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        self.masters().rev().try_fold(master, |master, stage| stage.publish(master))
    }

    /// Returns whether the last stages [publish parameters by themselves](MasterStage::each). Then
    /// [`publish_each`](Self::publish_each) and [`publish_rest`](Self::publish_rest) may replace [`publish`](Self::publish).
    pub fn publishes_each(&mut self) -> bool {
        self.masters().next_back().is_some_and(|stage| stage.each().is_some())
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
        for stage in self.masters().rev() {
            let Some(stage) = stage.each() else { break };
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
    pub fn publish_rest(&mut self, mut published: M) -> Result<M, StrategyError> {
        let mut rest = false;
        for stage in self.masters().rev() {
            rest = rest || stage.each().is_none();
            if rest {
                published = stage.publish(published)?;
            }
        }
        Ok(published)
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
            let Some(stage) = stage.masters() else { continue };
            evaluated = match stage.evaluates_master() {
                true => stage.evaluator(&published(later, master)?, evaluated)?,
                false => stage.evaluator(master, evaluated)?,
            };
        }
        Ok(evaluated)
    }

    /// Returns the part of a parameter that the master holds on this rank; `None` means all of it.
    pub fn shard(&mut self, parameter: ParamId) -> Option<Shard> {
        self.shards().find_map(|stage| stage.shard(parameter))
    }

    /// Returns the master to keep between two updates, once the replica exists, in reverse order: views of the replica
    /// where both hold the same values.
    pub fn alias_master(&mut self, master: M, replica: &M) -> M {
        self.shards().rev().fold(master, |master, stage| stage.alias_master(master, replica))
    }

    /// Returns the master in tensors of its own, before an update and after the replica is dropped.
    pub fn unalias_master(&mut self, master: M) -> M {
        self.shards().fold(master, |master, stage| stage.unalias_master(master))
    }

    /// Gathers the master into one whole model to save, in reverse order: on `root` only, or on every rank if `root` is
    /// `None`. Every rank must call it.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    pub fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        self.shards().rev().try_fold(Some(master), |master, stage| match master {
            Some(master) => stage.gather_full(master, root),
            None => Ok(None),
        })
    }

    /// Receives the current master: before the first step, and after each applied update, before it is
    /// [published](Self::publish).
    pub fn updated(&mut self, master: &M) {
        self.averages().for_each(|stage| stage.updated(master));
    }

    /// Returns the weights to evaluate and save instead of the master, if a stage has any.
    pub fn averaged(&mut self) -> Option<M> {
        self.averages().find_map(|stage| stage.averaged())
    }

    /// Hands the weights of a saved run to the stage that [averages](Self::averaged). Runs after
    /// [`restore`](Self::restore).
    pub fn resume_average(&mut self, averaged: M) {
        if let Some(stage) = self.averages().find(|stage| stage.averaged().is_some()) {
            stage.resume_average(averaged);
        }
    }

    /// Returns the factor by which to multiply the loss before the backward pass: the product of all stages' scales, or
    /// `None` if no stage scales it. It is constant within a window.
    pub fn loss_scale(&mut self) -> Option<f64> {
        self.windows().filter_map(|stage| stage.loss_scale()).reduce(|scale, other| scale * other)
    }

    /// Turns the gradients of the replica, from one micro-batch, into gradients of the master.
    ///
    /// If a stage skips the window, the stages after it still take part with gradients that say so, since their ranks
    /// may wait for one another.
    ///
    /// # Errors
    ///
    /// Training cannot continue, or a stage [holds](StrategyError::Held) the gradients of a complete window.
    pub fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let (closes, agreement) = (grads.closes(), grads.agreement().cloned());
        let mut outcome = Outcome::Apply(grads);
        for stage in &mut self.0 {
            let name = stage.name();
            let Some(stage) = stage.collects() else { continue };
            outcome = match outcome {
                Outcome::Apply(grads) => stage.collect(master, grads.agreeing(agreement.clone()))?,
                Outcome::Skip(reason) => {
                    stage.collect(master, Grads::skipped(reason, closes).agreeing(agreement.clone()))?
                }
                Outcome::Hold => break,
            };
            if closes && matches!(outcome, Outcome::Hold) {
                return Err(StrategyError::Held(name));
            }
        }
        Ok(outcome)
    }

    /// Returns the bytes of the gradients that the stages hold between two micro-batches of a window.
    pub fn held_bytes(&mut self) -> usize {
        self.windows().map(|stage| stage.held_bytes()).sum()
    }

    /// Returns whether a stage keeps an average of the master.
    pub fn keeps_average(&mut self) -> bool {
        self.averages().next().is_some()
    }

    /// Returns the [loss scale](Self::loss_scale) of the next window, should this one end so.
    pub fn loss_scale_after(&mut self, settled: &Settled) -> Option<f64> {
        let scales = self.windows().filter_map(|stage| stage.loss_scale_after(settled));
        scales.reduce(|scale, other| scale * other)
    }

    /// Receives the outcome of the window. Runs once after every window, before gradients of the next one are collected.
    ///
    /// # Errors
    ///
    /// Training cannot continue.
    pub fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        self.windows().try_for_each(|stage| stage.after_window(settled))
    }

    /// Returns the states that must survive a restart, one per stage. Runs only between windows.
    pub fn save(&mut self) -> Vec<StageState> {
        let states = self.0.iter_mut().map(|stage| {
            let state = StageState::new(stage.name());
            match stage.saves() {
                Some(stage) => stage.save(state),
                None => state,
            }
        });
        states.collect()
    }

    /// Restores the states that [`save`](Self::save) returned.
    ///
    /// # Errors
    ///
    /// The states were saved by other strategies, in another order, or with settings that they do not fit.
    pub fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        self.0.iter_mut().try_for_each(|stage| {
            let state = states.take(stage.name())?;
            stage.saves().map_or(Ok(()), |stage| stage.restore(&state))
        })
    }

    fn masters(&mut self) -> impl DoubleEndedIterator<Item = &mut dyn MasterStage<M>> {
        self.0.iter_mut().filter_map(|stage| stage.masters())
    }

    fn shards(&mut self) -> impl DoubleEndedIterator<Item = &mut dyn ShardStage<M>> {
        self.0.iter_mut().filter_map(|stage| stage.shards())
    }

    fn averages(&mut self) -> impl Iterator<Item = &mut dyn AverageStage<M>> {
        self.0.iter_mut().filter_map(|stage| stage.averages())
    }

    fn windows(&mut self) -> impl Iterator<Item = &mut dyn WindowStage<M>> {
        self.0.iter_mut().filter_map(|stage| stage.windows())
    }
}

/// A stage without its type, by the groups that it [lists](Stage::Groups).
trait AnyStage<M>: Stage<M> {
    fn collects(&mut self) -> Option<&mut dyn CollectStage<M>>;
    fn saves(&mut self) -> Option<&mut dyn SaveStage<M>>;
    fn masters(&mut self) -> Option<&mut dyn MasterStage<M>>;
    fn shards(&mut self) -> Option<&mut dyn ShardStage<M>>;
    fn averages(&mut self) -> Option<&mut dyn AverageStage<M>>;
    fn windows(&mut self) -> Option<&mut dyn WindowStage<M>>;
}

/// Returns a master as these stages publish it, once more: what is on its way from other ranks has come.
fn published<M: Clone>(stages: &mut [Box<dyn AnyStage<M>>], master: &M) -> Result<M, StrategyError> {
    let mut masters = stages.iter_mut().rev().filter_map(|stage| stage.masters());
    let published = masters.try_fold(master.clone(), |master, stage| stage.publish(master))?;
    // No later update may take these parameters for its own.
    let shards = stages.iter_mut().rev().filter_map(|stage| stage.shards());
    drop(shards.fold(master.clone(), |master, stage| stage.alias_master(master, &published)));
    Ok(published)
}

impl<M, S: Stage<M>> AnyStage<M> for S {
    fn collects(&mut self) -> Option<&mut dyn CollectStage<M>> {
        S::Groups::collect(self)
    }

    fn saves(&mut self) -> Option<&mut dyn SaveStage<M>> {
        S::Groups::save(self)
    }

    fn masters(&mut self) -> Option<&mut dyn MasterStage<M>> {
        S::Groups::master(self)
    }

    fn shards(&mut self) -> Option<&mut dyn ShardStage<M>> {
        S::Groups::shard(self)
    }

    fn averages(&mut self) -> Option<&mut dyn AverageStage<M>> {
        S::Groups::average(self)
    }

    fn windows(&mut self) -> Option<&mut dyn WindowStage<M>> {
        S::Groups::window(self)
    }
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
