//! One strategy or several, as the trainer uses them, and a list of them.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use firebrick_world::World;

use crate::{Adaptation, Order, Setup, Stages, Strategy, StrategyError};

/// One strategy, or several. Gradients pass through them in the [order](crate::Order) that follows from their effects.
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
/// use firebrick_strategies::{Accumulate, Clip, Composed, Composition, Setup, Strategy};
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
/// let named = Named("usual", Composed::new().with(Accumulate(2)).with(Clip::norm(1.0)));
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
    /// Returns the strategies, in the order in which they are written.
    fn strategies(&self) -> Vec<&dyn Strategy<M>>;

    /// Returns the ranks that train together, if a strategy defines them.
    fn ranks(&self) -> Option<&World> {
        self.strategies().into_iter().find_map(|strategy| strategy.world())
    }

    /// Turns the given model into the model to train, before anything else sees it.
    ///
    /// # Errors
    ///
    /// A setting is out of range, a technique stands twice, or the model lacks a parameter that a strategy changes.
    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        in_order(self.strategies())?.into_iter().try_fold(model, |model, strategy| {
            check(strategy)?;
            strategy.adapted(model, adaptation)
        })
    }

    /// Checks the settings of each strategy, and creates the live state of all of them for the [adapted](Self::adapt) model.
    ///
    /// # Errors
    ///
    /// A setting is out of range, a technique stands twice, or the device lacks a capability.
    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        in_order(self.strategies())?.into_iter().try_fold(Stages::none(), |stages, strategy| {
            check(strategy)?;
            setup.add(strategy.effects())?;
            Ok(stages.then(strategy.stages(setup)?))
        })
    }
}

/// Returns the strategies in the [order](Order) in which gradients pass through them.
fn in_order<M: 'static>(strategies: Vec<&dyn Strategy<M>>) -> Result<Vec<&dyn Strategy<M>>, StrategyError> {
    Order::sorted(strategies, |strategy| strategy.effects())
}

fn check<M: 'static>(strategy: &dyn Strategy<M>) -> Result<(), StrategyError> {
    strategy.check().map_err(|error| StrategyError::setting(strategy.effects().strategy, error))
}

impl<M: 'static, S: Strategy<M>> Composition<M> for S {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        vec![self]
    }
}

/// A list of strategies for the model `M`, as they are written. A new one is empty, and changes nothing.
///
/// ```
/// use burn::nn::Linear;
/// use firebrick_strategies::{Accumulate, Clip, Composed, Composition};
///
/// let bound = Some(1.0);
/// let strategies: Composed<Linear> = Composed::new().with(bound.map(Clip::norm)).with(Accumulate(4));
/// assert_eq!(strategies.strategies().len(), 2);
/// ```
///
/// If a type is not a strategy, the compiler names it:
///
/// ```compile_fail,E0277
/// use burn::nn::Linear;
/// use firebrick_strategies::{Accumulate, Composed};
///
/// let _: Composed<Linear> = Composed::new().with(Accumulate(2)).with("Clip"); // error[E0277]: `&str` is not a training strategy
/// ```
pub struct Composed<M: 'static>(Vec<Arc<dyn Composition<M>>>);

impl<M: 'static> Composed<M> {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a strategy, or several.
    pub fn with(mut self, strategy: impl Composition<M>) -> Self {
        self.0.push(Arc::new(strategy));
        self
    }
}

impl<M: 'static> Composition<M> for Composed<M> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        self.0.iter().flat_map(|composition| composition.strategies()).collect()
    }
}

impl<M: 'static, S: Composition<M>> Composition<M> for Option<S> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        self.iter().flat_map(S::strategies).collect()
    }
}

impl<M: 'static, S: Composition<M>> Composition<M> for Vec<S> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        self.iter().flat_map(S::strategies).collect()
    }
}

impl<M: 'static, S: Composition<M>> FromIterator<S> for Composed<M> {
    fn from_iter<I: IntoIterator<Item = S>>(strategies: I) -> Self {
        strategies.into_iter().fold(Self::new(), Self::with)
    }
}

impl<M: 'static> Default for Composed<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: 'static> Clone for Composed<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: 'static> Debug for Composed<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.strategies()).finish()
    }
}
