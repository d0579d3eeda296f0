//! The two traits: the recipe and its live state.

use std::fmt::Debug;

use burn::module::ParamId;

use crate::{
    Adaptation, Grads, Outcome, SavedStates, Settled, Setup, Shard, StageState, StrategyError, World,
};

/// A recipe for one technique of training: inert, cheap to clone, and checked by [`start`](Self::start).
///
/// The crate's documentation shows [how to write one](crate#writing-a-strategy).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a training strategy",
    label = "passed to `.with(..)`, but does not implement `Strategy`",
    note = "see \"Writing a strategy\" in the documentation of `firebrick-strategies`"
)]
pub trait Strategy<M>: Clone + Debug + Send + 'static {
    /// The live state that this recipe turns into.
    type Stage: Stage<M> + 'static;

    /// The ranks that train together, where this strategy says who they are.
    fn world(&self) -> Option<&World> {
        None
    }

    /// The model that is trained, made of the one that was given, before anything else sees it: optimizer,
    /// shards, moments and checkpoints are of the parameters that have a gradient after this. In a
    /// composition the strategies adapt it in the order in which they were written.
    ///
    /// # Errors
    ///
    /// The model has not what is to be changed of it.
    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        let _ = adaptation;
        Ok(model)
    }

    /// Checks the recipe against the model, once it is [adapted](Self::adapt), the device and the strategies
    /// written before it, and makes its live state.
    ///
    /// # Errors
    ///
    /// An impossible setting, an order that would give a wrong number, or something that the
    /// device cannot do.
    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError>;
}

/// A strategy at work: a pair of opposite maps between master and replica, and what it remembers.
///
/// Every method but the name has a default that changes nothing, so a stage implements only what
/// it is about.
pub trait Stage<M>: Send {
    /// The strategy's name as a user wrote it, for messages and saved states.
    fn name(&self) -> &'static str;

    /// Model to master, once, before the first step.
    ///
    /// # Errors
    ///
    /// Another rank is gone, where the stage shares the model among ranks.
    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        Ok(model)
    }

    /// Master to replica: before the first step and after each update.
    ///
    /// # Errors
    ///
    /// Another rank is gone, where the stage collects the master from ranks.
    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        Ok(master)
    }

    /// What is kept of the master between two updates, once the replica is there: a stage whose
    /// replica holds the master's numbers anyway lets the master be a view of them.
    fn alias_master(&mut self, master: M, replica: &M) -> M {
        let _ = replica;
        master
    }

    /// The master in tensors of its own, before an update, when the replica is gone: takes back what
    /// [`alias_master`](Self::alias_master) did.
    fn unalias_master(&mut self, master: M) -> M {
        master
    }

    /// Learns what the master is now: before the first step, where training starts from it, and after
    /// each update that was made, always before it is [published](Self::publish).
    fn updated(&mut self, master: &M) {
        let _ = master;
    }

    /// Weights to evaluate and save instead of the master, where this stage has some: of the master's
    /// shapes and on its devices, so that they can be [published](Self::publish).
    fn averaged(&self) -> Option<M> {
        None
    }

    /// Takes the weights that [`averaged`](Self::averaged) gave when the run was saved; where it was saved
    /// without, the master. Called after [`restore`](Self::restore).
    fn resume_average(&mut self, averaged: M) {
        let _ = averaged;
    }

    /// Which part of a parameter the master holds on this rank; `None`: all of it.
    fn shard(&self, parameter: ParamId) -> Option<Shard> {
        let _ = parameter;
        None
    }

    /// What evaluation reads, given the master and the replica. In a composition, `replica` is what
    /// the strategies written after this one answered.
    ///
    /// # Errors
    ///
    /// Those of [`publish`](Self::publish).
    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError> {
        let _ = master;
        Ok(replica)
    }

    /// The master as one whole model again, to be saved: on `root` alone, or on every rank without
    /// one. Every rank calls it. What ranks [share](Self::shard) comes together in the host's memory, since no device
    /// may have room for it.
    ///
    /// # Errors
    ///
    /// Those of [`publish`](Self::publish).
    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        let _ = root;
        Ok(Some(master))
    }

    /// What the loss of each micro-batch is multiplied by before the backward pass, where this
    /// stage scales it. It must stay the same within a window. [`collect`](Self::collect) takes it
    /// off again.
    fn loss_scale(&self) -> Option<f64> {
        None
    }

    /// Gradients of the replica, from one micro-batch, to gradients of the master.
    ///
    /// # Errors
    ///
    /// What makes going on pointless. A bad window is no error: see [`Outcome::Skip`].
    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let _ = master;
        Ok(Outcome::Apply(grads))
    }

    /// Bytes of the gradients that this stage holds between two micro-batches of a window.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Learns what became of the window: called once for each, at its end, those without a
    /// supervised item included.
    ///
    /// # Errors
    ///
    /// What makes going on pointless.
    fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        let _ = settled;
        Ok(())
    }

    /// Appends what must survive a restart. Called between windows only.
    fn save(&self, states: &mut Vec<StageState>) {
        states.push(StageState::new(self.name()));
    }

    /// Takes back what [`save`](Self::save) appended.
    ///
    /// # Errors
    ///
    /// The saved states were made by other strategies, or by another order of them.
    fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        states.take(self.name()).map(drop)
    }
}
