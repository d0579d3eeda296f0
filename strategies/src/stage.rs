//! The live state of one strategy, and the groups of methods that it implements if it needs them.

use burn::module::ParamId;

use crate::{Grads, Outcome, Settled, Shard, StageState, StrategyError};

/// The live state of a strategy: what it does to gradients, and what it remembers.
///
/// The methods here have defaults that change nothing. Four groups of methods are traits of their own: implement the
/// groups that the strategy needs, completely, and return `Some(self)` from their accessors.
///
/// | accessor | group | for a strategy that |
/// |---|---|---|
/// | [`master`](Self::master) | [`MasterStage`] | casts or moves the parameters between master and replica |
/// | [`sharding`](Self::sharding) | [`ShardStage`] | divides the master among the ranks |
/// | [`averaging`](Self::averaging) | [`AverageStage`] | keeps other weights to evaluate and to save |
/// | [`window`](Self::window) | [`WindowStage`] | scales the loss, holds gradients, or reacts to a window's outcome |
///
/// A group that is implemented in part does not compile:
///
/// ```compile_fail,E0046
/// use firebrick_strategies::{MasterStage, StrategyError};
///
/// struct Casting;
///
/// impl<M> MasterStage<M> for Casting {
///     fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
///         Ok(model)
///     }
/// } // error[E0046]: missing: `publish`, `evaluator`
/// ```
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
    /// Training cannot continue. A bad window is not an error: see [`Outcome::Skip`].
    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let _ = master;
        Ok(Outcome::Apply(grads))
    }

    /// Adds the values that must survive a restart to `state`, which has the stage's name. Runs only between windows.
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

    /// Returns the maps between master and replica, if this stage changes the parameters.
    fn master(&mut self) -> Option<&mut dyn MasterStage<M>> {
        None
    }

    /// Returns what divides the master among ranks, if this stage does.
    fn sharding(&mut self) -> Option<&mut dyn ShardStage<M>> {
        None
    }

    /// Returns what averages the master, if this stage does.
    fn averaging(&mut self) -> Option<&mut dyn AverageStage<M>> {
        None
    }

    /// Returns what acts on whole windows, if this stage does.
    fn window(&mut self) -> Option<&mut dyn WindowStage> {
        None
    }
}

/// A pair of opposite maps between master and replica: casts and moves of parameters.
pub trait MasterStage<M> {
    /// Turns the model into the master, once, before the first step.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage shards the model among ranks.
    fn init_master(&mut self, model: M) -> Result<M, StrategyError>;

    /// Turns the master into the replica, before the first step and after each update.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage gathers the master from several ranks.
    fn publish(&mut self, master: M) -> Result<M, StrategyError>;

    /// Returns the model that evaluation reads, given the master and what the strategies after this one returned, which
    /// is the replica if they return theirs. Runs before each evaluation. A strategy that evaluates the replica returns
    /// it; `replica` is then already [published](Self::publish), unless a later strategy made it from the master.
    ///
    /// # Errors
    ///
    /// The same as [`publish`](Self::publish).
    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError>;
}

/// A master of which each rank holds a part.
pub trait ShardStage<M> {
    /// Returns the part of a parameter that the master holds on this rank; `None` means all of it.
    fn shard(&self, parameter: ParamId) -> Option<Shard>;

    /// Returns the master to keep between two updates, once the replica exists. A stage whose replica holds the same
    /// values as the master returns a view of the replica.
    fn alias_master(&mut self, master: M, replica: &M) -> M;

    /// Returns the master in tensors of its own, before an update and after the replica is dropped. Undoes
    /// [`alias_master`](Self::alias_master).
    fn unalias_master(&mut self, master: M) -> M;

    /// Gathers the master into one whole model to save: on `root` only, or on every rank if `root` is `None`. The other
    /// ranks get `None`.
    ///
    /// Every rank must call it. [Shards](Self::shard) are gathered in host memory, because the whole model may not fit
    /// on a device.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError>;
}

/// Weights that are evaluated and saved instead of the master.
pub trait AverageStage<M> {
    /// Receives the current master: before the first step, and after each applied update. Always runs before the master
    /// is [published](MasterStage::publish).
    fn updated(&mut self, master: &M);

    /// Returns the weights to evaluate and save instead of the master, if there are any. They have the master's shapes
    /// and are on its devices, so they can be [published](MasterStage::publish).
    fn averaged(&self) -> Option<M>;

    /// Receives the weights that [`averaged`](Self::averaged) returned when the run was saved, or the master if the run
    /// was saved without them. Runs after [`restore`](Stage::restore).
    fn resume_average(&mut self, averaged: M);
}

/// What a stage does before, during and after a window of micro-batches.
pub trait WindowStage {
    /// Returns the factor by which to multiply the loss of each micro-batch before the backward pass, if this stage
    /// scales it. It must stay constant within a window. [`collect`](Stage::collect) divides by it again.
    fn loss_scale(&self) -> Option<f64>;

    /// Returns the bytes of the gradients that this stage holds between two micro-batches of a window.
    fn held_bytes(&self) -> usize;

    /// Receives the outcome of the window. Runs once at the end of every window, including windows without a supervised
    /// item.
    ///
    /// # Errors
    ///
    /// Training cannot continue.
    fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError>;
}
