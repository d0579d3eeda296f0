//! The recipe of a training technique.

use std::fmt::Debug;

use firebrick_world::World;

use crate::{Adaptation, Effects, SettingError, Setup, Stages, StrategyError};

/// A recipe for one training technique: without live state, and checked by [`start`](Self::start).
///
/// See [Writing a strategy](crate#writing-a-strategy) in the crate's documentation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a training strategy",
    label = "passed to `.with(..)`, but does not implement `Strategy`",
    note = "see \"Writing a strategy\" in the documentation of `firebrick-strategies`"
)]
pub trait Strategy<M>: Debug + Send + Sync + 'static {
    /// Returns what the strategy does, as far as others must know. Compositions have the effects of their parts.
    fn effects(&self) -> Effects {
        Effects::none(std::any::type_name::<Self>())
    }

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

    /// Checks the settings and the place of the strategy behind those that have started. Call it first in
    /// [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// A setting is out of range, the order would give a wrong result, or a technique stands twice.
    fn declare(&self, setup: &mut Setup<M>) -> Result<(), StrategyError> {
        let effects = self.effects();
        self.check().map_err(|error| StrategyError::setting(effects.strategy, error))?;
        setup.add(effects)
    }

    /// [Declares](Self::declare) the effects, checks the recipe against the [adapted](Self::adapt) model and the
    /// device, and creates the live state: usually [one stage](Stages::of).
    ///
    /// # Errors
    ///
    /// A setting is out of range, the order would give a wrong result, or the device lacks a capability.
    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError>;
}
