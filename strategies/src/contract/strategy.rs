//! The recipe of a training technique.

use std::fmt::Debug;

use firebrick_world::World;

use crate::{Adaptation, Effects, SettingError, Setup, Stages, StrategyError};

/// The part of a [`Strategy`] that does not depend on the model: its effects, the ranges of its settings, and its ranks.
pub trait StrategyRecipe: Debug + Send + Sync + 'static {
    /// Returns what the strategy does, as far as others must know.
    fn effects(&self) -> Effects;

    /// Checks the ranges of the settings.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    fn check(&self) -> Result<(), SettingError> {
        Ok(())
    }

    /// Returns the ranks that train together, if this strategy defines them.
    fn world(&self) -> Option<&World> {
        None
    }
}

/// A recipe for one training technique, without live state.
///
/// [`Composition`](crate::Composition) calls these methods, for one strategy and for several. A type
/// that holds other strategies is not a strategy itself: implement `Composition` for it.
///
/// See [Writing a strategy](crate#writing-a-strategy) in the crate's documentation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a training strategy",
    label = "passed to `.with(..)`, but does not implement `Strategy`",
    note = "see \"Writing a strategy\" in the documentation of `firebrick-strategies`"
)]
pub trait Strategy<M>: StrategyRecipe {
    /// Turns the given model into the model to train, before anything else sees it. The settings have been
    /// [checked](StrategyRecipe::check).
    ///
    /// The optimizer, the shards, the moments and the checkpoints cover the parameters that require a gradient after
    /// this call. A composition adapts the model in the [order](crate::Order) of its strategies.
    ///
    /// # Errors
    ///
    /// The model lacks a parameter that the strategy changes.
    fn adapted(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        let _ = adaptation;
        Ok(model)
    }

    /// Checks the recipe against the [adapted](Self::adapted) model and the device, and creates the live state: usually
    /// [one stage](Stages::of). The settings have been checked, and `setup` has the strategy's
    /// [effects](StrategyRecipe::effects) after those of the strategies before it.
    ///
    /// # Errors
    ///
    /// The model or the device lacks what the strategy needs.
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError>;
}
