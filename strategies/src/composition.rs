//! One strategy or several, as the trainer uses them.

use std::fmt::Debug;

use firebrick_world::World;

use crate::{Adaptation, Setup, Stages, Strategy, StrategyError};

/// One strategy, or several in the order in which gradients pass through them.
///
/// Every [`Strategy`] is a composition of itself. A type that holds other strategies implements one method, which lists
/// them. The compiler reports it if it is missing:
///
/// ```compile_fail,E0046
/// use firebrick_strategies::Composition;
///
/// #[derive(Debug)]
/// struct Named<S>(&'static str, S);
///
/// impl<M: 'static, S: Composition<M>> Composition<M> for Named<S> {} // error[E0046]: missing: `strategies`
/// ```
///
/// Everything else follows from the list:
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, tensor::Device};
/// use firebrick_strategies::{Accumulate, Clip, Composition, Setup, Stack, Strategy};
///
/// #[derive(Debug)]
/// struct Named<S>(&'static str, S);
///
/// impl<M: 'static, S: Composition<M>> Composition<M> for Named<S> {
///     fn strategies(&self) -> Vec<&dyn Strategy<M>> { self.1.strategies() }
/// }
///
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(2, 2).init(&device);
/// let named = Named("usual", Stack::new(Accumulate(2), Clip::norm(1.0)));
/// let stages = named.start(&mut Setup::new(&model, &device))?;
/// assert_eq!(format!("{stages:?}"), r#"["Accumulate", "Clip"]"#);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a training strategy",
    label = "passed to `.with(..)`, but does not implement `Strategy`",
    note = "see \"Writing a strategy\" in the documentation of `firebrick-strategies`"
)]
pub trait Composition<M: 'static>: Debug + Send + Sync + 'static {
    /// Returns the strategies, in the order in which gradients pass through them.
    fn strategies(&self) -> Vec<&dyn Strategy<M>>;

    /// Returns the ranks that train together, if a strategy defines them.
    fn ranks(&self) -> Option<&World> {
        self.strategies().into_iter().find_map(|strategy| strategy.world())
    }

    /// Turns the given model into the model to train, before anything else sees it.
    ///
    /// # Errors
    ///
    /// A setting is out of range, or the model lacks a parameter that a strategy changes.
    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        self.strategies().into_iter().try_fold(model, |model, strategy| {
            check(strategy)?;
            strategy.adapted(model, adaptation)
        })
    }

    /// Checks the settings of each strategy and its place behind those before it, and creates the live state of all of
    /// them for the [adapted](Self::adapt) model.
    ///
    /// # Errors
    ///
    /// A setting is out of range, the order would give a wrong result, a technique stands twice, or the device lacks a
    /// capability.
    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        self.strategies().into_iter().try_fold(Stages::none(), |stages, strategy| {
            check(strategy)?;
            setup.add(strategy.effects())?;
            Ok(stages.then(strategy.stages(setup)?))
        })
    }
}

fn check<M: 'static>(strategy: &dyn Strategy<M>) -> Result<(), StrategyError> {
    strategy.check().map_err(|error| StrategyError::setting(strategy.effects().strategy, error))
}

impl<M: 'static, S: Strategy<M>> Composition<M> for S {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        vec![self]
    }
}
