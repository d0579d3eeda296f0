//! The live state of one strategy.

use burn::module::ParamId;
use burn::tensor::Tensor;

use crate::{Grads, Outcome, Settled, Shard, StageState, StrategyError};

/// How a stage makes the replica from the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publishes {
    /// It leaves the parameters as they are.
    Nothing,
    /// All parameters at once, by [`publish`](Stage::publish).
    Together,
    /// Parameters by themselves too, by [`publish_each`](Stage::publish_each). A device can then receive some of them while
    /// the host updates others.
    Each,
}

/// The live state of a strategy. It has a name; a strategy implements the other methods that it needs, which change nothing
/// by default:
///
/// | methods | for a strategy that |
/// |---|---|
/// | [`collect`](Self::collect) | changes, sums or skips gradients |
/// | [`save`](Self::save), [`restore`](Self::restore) | has values that must survive a restart |
/// | [`init_master`](Self::init_master), [`publish`](Self::publish), [`publishes`](Self::publishes), [`publish_each`](Self::publish_each), [`evaluator`](Self::evaluator) | casts or moves the parameters between master and replica |
/// | [`shard`](Self::shard), [`alias_master`](Self::alias_master), [`unalias_master`](Self::unalias_master), [`gather_full`](Self::gather_full) | divides the master among the ranks |
/// | [`averages`](Self::averages), [`updated`](Self::updated), [`averaged`](Self::averaged), [`resume_average`](Self::resume_average) | keeps other weights to evaluate and to save |
/// | [`loss_scale`](Self::loss_scale), [`held_bytes`](Self::held_bytes), [`after_step`](Self::after_step) | scales the loss, holds gradients, or reacts to the outcome of a step |
///
/// [`conformance::check`](crate::conformance::check) finds what does not fit together, such as a value that is saved and not
/// restored. A stage that wraps another one forwards each method.
///
/// A composition has a list of stages, [`Stages`](crate::Stages), which is the only code that calls these methods.
pub trait Stage<M>: Send {
    /// Returns the strategy's name as users write it, for messages and saved states.
    fn name(&self) -> &'static str;

    /// Turns the gradients of the replica, from one micro-batch, into gradients of the master. Runs once for each
    /// micro-batch, unless an earlier stage holds its gradients.
    ///
    /// # Errors
    ///
    /// Training cannot continue. A bad step is not an error: see [`Outcome::Skip`].
    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let _ = master;
        Ok(Outcome::Apply(grads))
    }

    /// Adds the values to `state`, which has the stage's name. Runs only between optimizer steps.
    fn save(&self, state: StageState) -> StageState {
        state
    }

    /// Restores the values that [`save`](Self::save) added.
    ///
    /// # Errors
    ///
    /// A value is missing, or does not fit the recipe.
    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
        let _ = saved;
        Ok(())
    }

    /// Turns the model into the master, once, before the first step.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage shards the model among ranks.
    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        Ok(model)
    }

    /// Turns the master into the replica, before the first step and after each update. A parameter of the replica may be
    /// lazy, and wait for its value when it is first read.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage gathers the master from several ranks.
    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        Ok(master)
    }

    /// Returns how the stage makes the replica. By default it doesn't, and [`publish`](Self::publish) is not called.
    fn publishes(&self) -> Publishes {
        Publishes::Nothing
    }

    /// Turns some parameters of the master into those of the replica, each flat and outside autodiff, in any number and
    /// order. Together, the calls after an update return what `publish` would.
    ///
    /// # Errors
    ///
    /// The device has failed.
    fn publish_each(
        &mut self,
        master: Vec<(ParamId, Tensor<1>)>,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        Ok(master)
    }

    /// Returns whether [`evaluator`](Self::evaluator) reads the master. By default it does not.
    fn evaluates_master(&self) -> bool {
        false
    }

    /// Returns the model that evaluation reads, given the master and what the strategies after this one returned, which
    /// is the replica if they return theirs. Runs before each evaluation. A strategy that evaluates the replica returns
    /// it; `replica` is then already [published](Self::publish), unless a later strategy made it from the master. A strategy
    /// that [evaluates the master](Self::evaluates_master) receives what it would publish: the master on its way from the
    /// later strategies.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError> {
        let _ = master;
        Ok(replica)
    }

    /// Returns the part of a parameter that the master holds on this rank; `None` means all of it.
    fn shard(&self, parameter: ParamId) -> Option<Shard> {
        let _ = parameter;
        None
    }

    /// Returns the master to keep until the next update. First waits for the parameters of the replica that
    /// [`publish`](Self::publish) left on their way. A stage whose replica holds the same values as the master returns a
    /// view of the replica.
    fn alias_master(&mut self, master: M, replica: &M) -> M {
        let _ = replica;
        master
    }

    /// Returns the master in tensors of its own, before an update and after the replica is dropped. Undoes
    /// [`alias_master`](Self::alias_master).
    fn unalias_master(&mut self, master: M) -> M {
        master
    }

    /// Gathers the master into one whole model to save: on `root` only, or on every rank if `root` is `None`. The other
    /// ranks get `None`.
    ///
    /// Every rank must call it. [Shards](Self::shard) are gathered in host memory, because the whole model may not fit
    /// on a device.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        let _ = root;
        Ok(Some(master))
    }

    /// Returns whether the stage keeps other weights to evaluate and to save. By default it doesn't, and
    /// [`averaged`](Self::averaged) is not called.
    fn averages(&self) -> bool {
        false
    }

    /// Receives the current master: before the first step, and after each applied update, as soon as it is known to be one.
    /// That is before the master is [published](Self::publish) as a whole, or, if a device decides about the update, before
    /// gradients of the next step are collected.
    fn updated(&mut self, master: &M) {
        let _ = master;
    }

    /// Returns the weights to evaluate and save instead of the master, if there are any. They have the master's shapes
    /// and are on its devices, so they can be [published](Self::publish).
    fn averaged(&self) -> Option<M> {
        None
    }

    /// Receives the weights that [`averaged`](Self::averaged) returned when the run was saved, or the master if the run
    /// was saved without them. Runs after [`restore`](Self::restore).
    fn resume_average(&mut self, averaged: M) {
        let _ = averaged;
    }

    /// Returns the factor by which to multiply the loss of each micro-batch before the backward pass, if this stage
    /// scales it. It must stay constant within an optimizer step. [`collect`](Self::collect) divides by it again.
    fn loss_scale(&self) -> Option<f64> {
        None
    }

    /// Returns the bytes of the gradients that this stage holds between two micro-batches of an optimizer step.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Returns the [loss scale](Self::loss_scale) of the next step, should this one end so. A device that decides about
    /// an update on its own chooses between two of them, before the host knows the outcome.
    fn loss_scale_after(&self, settled: &Settled) -> Option<f64> {
        let _ = settled;
        None
    }

    /// Receives the outcome of an optimizer step. Runs once after every step, including steps without a supervised item:
    /// before gradients of the next step are collected, and before anything is saved or evaluated.
    ///
    /// # Errors
    ///
    /// Training cannot continue.
    fn after_step(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        let _ = settled;
        Ok(())
    }
}
