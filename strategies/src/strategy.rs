//! The two traits: the recipe and its live state.

use std::fmt::Debug;

use burn::module::ParamId;
use firebrick_world::World;

use crate::{Adaptation, Grads, Outcome, SavedStates, Settled, Setup, Shard, StageState, StrategyError};

/// A recipe for one training technique: cheap to clone, without live state, and checked by [`start`](Self::start).
///
/// See [Writing a strategy](crate#writing-a-strategy) in the crate's documentation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a training strategy",
    label = "passed to `.with(..)`, but does not implement `Strategy`",
    note = "see \"Writing a strategy\" in the documentation of `firebrick-strategies`"
)]
pub trait Strategy<M>: Clone + Debug + Send + 'static {
    /// The live state that [`start`](Self::start) creates.
    type Stage: Stage<M> + 'static;

    /// Returns the ranks that train together, if this strategy defines them.
    fn world(&self) -> Option<&World> {
        None
    }

    /// Turns the given model into the model to train, before anything else sees it.
    ///
    /// The optimizer, the shards, the moments and the checkpoints cover the parameters that require a gradient after
    /// this call. A composition adapts the model in the order in which you write its strategies.
    ///
    /// # Errors
    ///
    /// The model lacks a parameter that the strategy changes.
    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        let _ = adaptation;
        Ok(model)
    }

    /// Checks the recipe against the [adapted](Self::adapt) model, the device and the strategies before it, and creates
    /// its live state.
    ///
    /// # Errors
    ///
    /// A setting is out of range, the order would give a wrong result, or the device lacks a capability.
    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError>;
}

/// The live state of a strategy: a pair of opposite maps between master and replica, and what it remembers.
///
/// Every method except [`name`](Self::name) has a default that changes nothing, so you implement only the ones that you
/// need.
pub trait Stage<M>: Send {
    /// Returns the strategy's name as users write it, for messages and saved states.
    fn name(&self) -> &'static str;

    /// Turns the model into the master, once, before the first step.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage shards the model among ranks.
    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        Ok(model)
    }

    /// Turns the master into the replica, before the first step and after each update.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage gathers the master from several ranks.
    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        Ok(master)
    }

    /// Returns the master to keep between two updates, once the replica exists. A stage whose replica holds the same
    /// values as the master returns a view of the replica.
    fn alias_master(&mut self, master: M, replica: &M) -> M {
        let _ = replica;
        master
    }

    /// Returns the master in tensors of its own, before an update and after the replica is dropped. Undoes
    /// [`alias_master`](Self::alias_master).
    fn unalias_master(&mut self, master: M) -> M {
        master
    }

    /// Receives the current master: before the first step, and after each applied update. Always runs before the master
    /// is [published](Self::publish).
    fn updated(&mut self, master: &M) {
        let _ = master;
    }

    /// Returns the weights to evaluate and save instead of the master, if this stage has any. They have the master's
    /// shapes and are on its devices, so they can be [published](Self::publish).
    fn averaged(&self) -> Option<M> {
        None
    }

    /// Receives the weights that [`averaged`](Self::averaged) returned when the run was saved, or the master if the run
    /// was saved without them. Runs after [`restore`](Self::restore).
    fn resume_average(&mut self, averaged: M) {
        let _ = averaged;
    }

    /// Returns the part of a parameter that the master holds on this rank; `None` means all of it.
    fn shard(&self, parameter: ParamId) -> Option<Shard> {
        let _ = parameter;
        None
    }

    /// Returns the model that evaluation reads, given the master and the replica. In a composition, `replica` is what
    /// the strategies after this one returned.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError> {
        let _ = master;
        Ok(replica)
    }

    /// Gathers the master into one whole model to save: on `root` only, or on every rank if `root` is `None`.
    ///
    /// Every rank must call it. [Shards](Self::shard) are gathered in host memory, because the whole model may not fit
    /// on a device.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        let _ = root;
        Ok(Some(master))
    }

    /// Returns the factor by which to multiply the loss of each micro-batch before the backward pass, if this stage
    /// scales it. It must stay constant within a window. [`collect`](Self::collect) divides by it again.
    fn loss_scale(&self) -> Option<f64> {
        None
    }

    /// Turns the gradients of the replica, from one micro-batch, into gradients of the master.
    ///
    /// # Errors
    ///
    /// Training cannot continue. A bad window is not an error: see [`Outcome::Skip`].
    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let _ = master;
        Ok(Outcome::Apply(grads))
    }

    /// Returns the bytes of the gradients that this stage holds between two micro-batches of a window.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Receives the outcome of the window. Runs once at the end of every window, including windows without a supervised
    /// item.
    ///
    /// # Errors
    ///
    /// Training cannot continue.
    fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        let _ = settled;
        Ok(())
    }

    /// Appends the state that must survive a restart. Runs only between windows.
    fn save(&self, states: &mut Vec<StageState>) {
        states.push(StageState::new(self.name()));
    }

    /// Restores the state that [`save`](Self::save) appended.
    ///
    /// # Errors
    ///
    /// The states were saved by other strategies, or in another order.
    fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        states.take(self.name()).map(drop)
    }
}
