//! A type-erased strategy: code that uses it is compiled once per model, not once per composition.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use firebrick_world::World;

use crate::{Adaptation, Effects, SettingError, Setup, Stages, Strategy, StrategyError};

/// Any strategy for the model `M`, behind a pointer.
///
/// A composition such as `Stack<Stack<Identity, Amp>, Clip>` is its own type, and everything generic over it is
/// compiled again. The trainer boxes the composition once, at the start. For a list of strategies that is only known at
/// run time, use a `Vec<BoxedStrategy<M>>`.
///
/// ```
/// use burn::nn::Linear;
/// use firebrick_strategies::{Accumulate, BoxedStrategy, Clip};
///
/// let mut strategies: Vec<BoxedStrategy<Linear>> = vec![BoxedStrategy::new(Accumulate(4))];
/// strategies.push(BoxedStrategy::new(Clip::norm(1.0)));
/// assert_eq!(format!("{:?}", strategies[0]), "Accumulate(4)");
/// ```
pub struct BoxedStrategy<M>(Arc<dyn Strategy<M>>);

impl<M: 'static> BoxedStrategy<M> {
    /// Erases the type of `strategy`.
    pub fn new(strategy: impl Strategy<M>) -> Self {
        Self(Arc::new(strategy))
    }

    pub(crate) fn of(strategy: Arc<dyn Strategy<M>>) -> Self {
        Self(strategy)
    }
}

impl<M: 'static> Strategy<M> for BoxedStrategy<M> {
    fn effects(&self) -> Effects {
        self.0.effects()
    }

    fn check(&self) -> Result<(), SettingError> {
        self.0.check()
    }

    fn world(&self) -> Option<&World> {
        self.0.world()
    }

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        self.0.adapt(model, adaptation)
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        self.0.start(setup)
    }
}

impl<M> Clone for BoxedStrategy<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Prints the strategy itself.
impl<M> Debug for BoxedStrategy<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
