//! The two traits: the recipe and its live state.

use std::fmt::Debug;

use crate::{Grads, Outcome, SavedStates, Settled, Setup, StageState, StrategyError};

/// A recipe for one technique of training: inert, cheap to clone, and checked by [`start`](Self::start).
///
/// The crate's documentation shows [how to write one](crate#writing-a-strategy).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a training strategy",
    label = "passed to `.with(..)`, but does not implement `Strategy`",
    note = "see \"Writing a strategy\" in the documentation of `firebrick-strategies`"
)]
pub trait Strategy<M>: Clone + Debug {
    /// The live state that this recipe turns into.
    type Stage: Stage<M> + 'static;

    /// Checks the recipe against the model, the device and the strategies written before it, and
    /// makes its live state.
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
    fn own(&mut self, model: M) -> M {
        model
    }

    /// Master to replica: before the first step and after each update.
    fn publish(&mut self, master: M) -> M {
        master
    }

    /// What evaluation reads, given the master and the replica. In a composition, `replica` is what
    /// the strategies written after this one answered.
    fn evaluator(&mut self, master: &M, replica: M) -> M {
        let _ = master;
        replica
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

    /// Learns what became of the window: called once for each, at its end, those without a
    /// supervised item included.
    ///
    /// # Errors
    ///
    /// What makes going on pointless.
    fn settled(&mut self, settled: &Settled) -> Result<(), StrategyError> {
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
