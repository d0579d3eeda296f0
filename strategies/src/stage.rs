//! The live state of one strategy, and the groups of methods that it implements if it needs them.

use burn::module::ParamId;
use burn::tensor::Tensor;

use crate::{Grads, Outcome, Settled, Shard, StageState, StrategyError, groups};

/// The live state of a strategy: a name, and the groups of methods that the strategy needs.
///
/// Each group is a trait of its own. Implement the groups that the strategy needs and list them as
/// [`Groups`](Self::Groups), in the order of this table: `()` for none, `(groups::Collect,)` for one.
///
/// | [group](crate::groups) | trait | for a strategy that |
/// |---|---|---|
/// | `Collect` | [`CollectStage`] | changes, sums or skips gradients |
/// | `Save` | [`SaveStage`] | has values that must survive a restart |
/// | `Master` | [`MasterStage`] | casts or moves the parameters between master and replica |
/// | `Shard` | [`ShardStage`] | divides the master among the ranks |
/// | `Average` | [`AverageStage`] | keeps other weights to evaluate and to save |
/// | `Window` | [`WindowStage`] | scales the loss, holds gradients, or reacts to a window's outcome |
///
/// No method has a default, so the compiler finds what you forget. A group that the stage implements must be listed:
///
/// ```compile_fail,E0277
/// use firebrick_strategies::{AverageStage, Stage};
///
/// struct Last<M>(Option<M>);
///
/// impl<M: Clone + Send + 'static> Stage<M> for Last<M> {
///     type Groups = (); // error[E0277], at `AverageStage`: `Groups` do not list `Average`
///
///     fn name(&self) -> &'static str { "Last" }
/// }
///
/// impl<M: Clone + Send + 'static> AverageStage<M> for Last<M> {
///     fn updated(&mut self, master: &M) { self.0 = Some(master.clone()); }
///     fn averaged(&self) -> Option<M> { self.0.clone() }
///     fn resume_average(&mut self, averaged: M) { self.0 = Some(averaged); }
/// }
/// ```
///
/// A group that is listed must be implemented:
///
/// ```compile_fail,E0277
/// use firebrick_strategies::{Stage, groups};
///
/// struct Casting;
///
/// impl<M> Stage<M> for Casting {
///     type Groups = (groups::Master,); // error[E0277]: `Casting` does not implement `MasterStage`
///
///     fn name(&self) -> &'static str { "Casting" }
/// }
/// ```
///
/// And a group must be implemented as a whole, for example without a value that is saved but not restored:
///
/// ```compile_fail,E0046
/// use firebrick_strategies::{SaveStage, Stage, StageState, groups};
///
/// struct Counting(u64);
///
/// impl<M> Stage<M> for Counting {
///     type Groups = (groups::Save,);
///
///     fn name(&self) -> &'static str { "Counting" }
/// }
///
/// impl<M> SaveStage<M> for Counting {
///     fn save(&self, state: StageState) -> StageState { state.with("count", self.0 as f64) }
/// } // error[E0046]: missing: `restore`
/// ```
///
/// The compiler cannot check a stage that wraps another one: list and forward each group of the inner stage.
///
/// A composition has a list of stages, [`Stages`](crate::Stages), which is the only code that calls these methods.
pub trait Stage<M>: Send {
    /// The groups that the stage implements, as a tuple in the order of the [table](Stage).
    type Groups: GroupList<Self, M>
    where
        Self: Sized;

    /// Returns the strategy's name as users write it, for messages and saved states.
    fn name(&self) -> &'static str;
}

/// A stage whose [`Groups`](Stage::Groups) list `G`: The trait of each group requires it. You don't implement it.
pub trait Lists<G, M> {}

impl<G, M, S: Stage<M>> Lists<G, M> for S where S::Groups: groups::Includes<G> {}

/// A tuple of [groups] that the stage `S` implements. You don't implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of the groups of `{S}`",
    label = "`{S}` does not implement one of these groups, or they are in another order",
    note = "list the groups that the stage implements in the order `(Collect, Save, Master, Shard, Average, Window)`"
)]
pub trait GroupList<S, M> {
    /// Returns the stage as a [`CollectStage`], if the list includes `Collect`.
    fn collect(stage: &mut S) -> Option<&mut dyn CollectStage<M>> {
        let _ = stage;
        None
    }

    /// Returns the stage as a [`SaveStage`], if the list includes `Save`.
    fn save(stage: &mut S) -> Option<&mut dyn SaveStage<M>> {
        let _ = stage;
        None
    }

    /// Returns the stage as a [`MasterStage`], if the list includes `Master`.
    fn master(stage: &mut S) -> Option<&mut dyn MasterStage<M>> {
        let _ = stage;
        None
    }

    /// Returns the stage as a [`ShardStage`], if the list includes `Shard`.
    fn shard(stage: &mut S) -> Option<&mut dyn ShardStage<M>> {
        let _ = stage;
        None
    }

    /// Returns the stage as a [`AverageStage`], if the list includes `Average`.
    fn average(stage: &mut S) -> Option<&mut dyn AverageStage<M>> {
        let _ = stage;
        None
    }

    /// Returns the stage as a [`WindowStage`], if the list includes `Window`.
    fn window(stage: &mut S) -> Option<&mut dyn WindowStage<M>> {
        let _ = stage;
        None
    }
}

/// Implements [`GroupList`] for each tuple of groups that keeps their order.
macro_rules! lists {
    // The groups that are in the list; then those that are still to be taken in or left out.
    ([$($group:ident $method:ident $stage:ident,)*]) => {
        impl<M, S: Stage<M> $(+ $stage<M>)*> GroupList<S, M> for ($(groups::$group,)*) {
            $(
                fn $method(stage: &mut S) -> Option<&mut dyn $stage<M>> {
                    Some(stage)
                }
            )*
        }
        lists!(includes ($(groups::$group,)*) $($group)*);
    };
    ([$($in:tt)*] $group:ident $method:ident $stage:ident, $($rest:tt)*) => {
        lists!([$($in)* $group $method $stage,] $($rest)*);
        lists!([$($in)*] $($rest)*);
    };
    (includes $list:tt $($group:ident)*) => {
        $(impl groups::Includes<groups::$group> for $list {})*
    };
}

lists!([]
    Collect collect CollectStage,
    Save save SaveStage,
    Master master MasterStage,
    Shard shard ShardStage,
    Average average AverageStage,
    Window window WindowStage,
);

/// What a stage does to gradients.
pub trait CollectStage<M>: Lists<groups::Collect, M> {
    /// Turns the gradients of the replica, from one micro-batch, into gradients of the master. Runs once for each
    /// micro-batch, unless an earlier stage holds its gradients.
    ///
    /// # Errors
    ///
    /// Training cannot continue. A bad window is not an error: see [`Outcome::Skip`].
    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError>;
}

/// Values that must survive a restart.
pub trait SaveStage<M>: Lists<groups::Save, M> {
    /// Adds the values to `state`, which has the stage's name. Runs only between windows.
    fn save(&self, state: StageState) -> StageState;

    /// Restores the values that [`save`](Self::save) added.
    ///
    /// # Errors
    ///
    /// A value is missing, or does not fit the recipe.
    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError>;
}

/// A pair of opposite maps between master and replica: casts and moves of parameters.
pub trait MasterStage<M>: Lists<groups::Master, M> {
    /// Turns the model into the master, once, before the first step.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage shards the model among ranks.
    fn init_master(&mut self, model: M) -> Result<M, StrategyError>;

    /// Turns the master into the replica, before the first step and after each update. A parameter of the replica may be
    /// lazy, and wait for its value when it is first read.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the stage gathers the master from several ranks.
    fn publish(&mut self, master: M) -> Result<M, StrategyError>;

    /// Returns the stage as one that publishes parameters by themselves. A device can then receive some parameters while
    /// the host updates others. By default it does not, and [`publish`](Self::publish) receives all parameters at once.
    fn each(&mut self) -> Option<&mut dyn PublishEach> {
        None
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
    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError>;
}

/// A stage that [publishes](MasterStage::publish) parameters by themselves, before the others have been updated.
pub trait PublishEach {
    /// Turns some parameters of the master into those of the replica, each flat and outside autodiff, in any number and
    /// order. Together, the calls after an update return what `publish` would.
    ///
    /// # Errors
    ///
    /// The device has failed.
    fn publish_each(
        &mut self,
        master: Vec<(ParamId, Tensor<1>)>,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError>;
}

/// A master of which each rank holds a part.
pub trait ShardStage<M>: Lists<groups::Shard, M> {
    /// Returns the part of a parameter that the master holds on this rank; `None` means all of it.
    fn shard(&self, parameter: ParamId) -> Option<Shard>;

    /// Returns the master to keep until the next update. First waits for the parameters of the replica that
    /// [`publish`](MasterStage::publish) left on their way. A stage whose replica holds the same values as the master returns a
    /// view of the replica.
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
pub trait AverageStage<M>: Lists<groups::Average, M> {
    /// Receives the current master: before the first step, and after each applied update, as soon as it is known to be one.
    /// That is before the master is [published](MasterStage::publish) as a whole, or, if a device decides about the update, before
    /// gradients of the next window are collected.
    fn updated(&mut self, master: &M);

    /// Returns the weights to evaluate and save instead of the master, if there are any. They have the master's shapes
    /// and are on its devices, so they can be [published](MasterStage::publish).
    fn averaged(&self) -> Option<M>;

    /// Receives the weights that [`averaged`](Self::averaged) returned when the run was saved, or the master if the run
    /// was saved without them. Runs after [`restore`](SaveStage::restore).
    fn resume_average(&mut self, averaged: M);
}

/// What a stage does before, during and after a window of micro-batches.
pub trait WindowStage<M>: Lists<groups::Window, M> {
    /// Returns the factor by which to multiply the loss of each micro-batch before the backward pass, if this stage
    /// scales it. It must stay constant within a window. [`collect`](CollectStage::collect) divides by it again.
    fn loss_scale(&self) -> Option<f64>;

    /// Returns the bytes of the gradients that this stage holds between two micro-batches of a window.
    fn held_bytes(&self) -> usize;

    /// Returns the [loss scale](Self::loss_scale) of the next window, should this one end so. A device that decides about
    /// an update on its own chooses between two of them, before the host knows the outcome.
    fn loss_scale_after(&self, settled: &Settled) -> Option<f64>;

    /// Receives the outcome of the window. Runs once after every window, including windows without a supervised item: before
    /// gradients of the next window are collected, and before anything is saved or evaluated.
    ///
    /// # Errors
    ///
    /// Training cannot continue.
    fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError>;
}
