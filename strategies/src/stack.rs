//! Composition of strategies: a pair, none, an optional one, and a list.

use firebrick_world::World;

use crate::{Adaptation, Setup, Stages, Strategy, StrategyError};

/// A strategy that changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Identity;

impl<M> Strategy<M> for Identity {
    fn start(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::none())
    }
}

/// Two strategies, in the order in which gradients pass through them.
#[derive(Clone, Debug)]
pub struct Stack<A, B> {
    first: A,
    then: B,
}

impl<A, B> Stack<A, B> {
    /// Composes `first` and `then`, in this order.
    pub fn new(first: A, then: B) -> Self {
        Self { first, then }
    }
}

impl<M, A: Strategy<M>, B: Strategy<M>> Strategy<M> for Stack<A, B> {
    fn world(&self) -> Option<&World> {
        self.first.world().or(self.then.world())
    }

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        self.then.adapt(self.first.adapt(model, adaptation)?, adaptation)
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(self.first.start(setup)?.then(self.then.start(setup)?))
    }
}

impl<M, S: Strategy<M>> Strategy<M> for Option<S> {
    fn world(&self) -> Option<&World> {
        self.as_ref()?.world()
    }

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        match self {
            Some(strategy) => strategy.adapt(model, adaptation),
            None => Ok(model),
        }
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        self.as_ref().map_or_else(|| Ok(Stages::none()), |strategy| strategy.start(setup))
    }
}

impl<M, S: Strategy<M>> Strategy<M> for Vec<S> {
    fn world(&self) -> Option<&World> {
        self.iter().find_map(|strategy| strategy.world())
    }

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        self.iter().try_fold(model, |model, strategy| strategy.adapt(model, adaptation))
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        self.iter().try_fold(Stages::none(), |stages, strategy| Ok(stages.then(strategy.start(setup)?)))
    }
}
