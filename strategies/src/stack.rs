//! Composition of strategies: a pair, none, an optional one, and a list.

use burn::module::ParamId;
use firebrick_world::World;

use crate::{
    Adaptation, Grads, Outcome, SavedStates, Settled, Setup, Shard, Stage, StageState, Strategy,
    StrategyError,
};

/// A strategy that changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Identity;

impl<M> Strategy<M> for Identity {
    type Stage = Identity;

    fn start(&self, _: &mut Setup<M>) -> Result<Identity, StrategyError> {
        Ok(Identity)
    }
}

impl<M> Stage<M> for Identity {
    fn name(&self) -> &'static str {
        "Identity"
    }

    fn save(&self, _: &mut Vec<StageState>) {}

    fn restore(&mut self, _: &mut SavedStates) -> Result<(), StrategyError> {
        Ok(())
    }
}

/// Two strategies, or two stages, in the order in which gradients pass through them.
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
    type Stage = Stack<A::Stage, B::Stage>;

    fn world(&self) -> Option<&World> {
        self.first.world().or(self.then.world())
    }

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        self.then.adapt(self.first.adapt(model, adaptation)?, adaptation)
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError> {
        Ok(Stack::new(self.first.start(setup)?, self.then.start(setup)?))
    }
}

impl<M, A: Stage<M>, B: Stage<M>> Stage<M> for Stack<A, B> {
    fn name(&self) -> &'static str {
        "Stack"
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        self.then.init_master(self.first.init_master(model)?)
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        self.first.publish(self.then.publish(master)?)
    }

    fn updated(&mut self, master: &M) {
        self.first.updated(master);
        self.then.updated(master);
    }

    fn averaged(&self) -> Option<M> {
        self.first.averaged().or_else(|| self.then.averaged())
    }

    fn resume_average(&mut self, averaged: M) {
        match self.first.averaged().is_some() {
            true => self.first.resume_average(averaged),
            false => self.then.resume_average(averaged),
        }
    }

    fn shard(&self, parameter: ParamId) -> Option<Shard> {
        self.first.shard(parameter).or_else(|| self.then.shard(parameter))
    }

    fn alias_master(&mut self, master: M, replica: &M) -> M {
        let master = self.then.alias_master(master, replica);
        self.first.alias_master(master, replica)
    }

    fn unalias_master(&mut self, master: M) -> M {
        self.then.unalias_master(self.first.unalias_master(master))
    }

    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError> {
        self.first.evaluator(master, self.then.evaluator(master, replica)?)
    }

    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        match self.then.gather_full(master, root)? {
            Some(master) => self.first.gather_full(master, root),
            None => Ok(None),
        }
    }

    fn loss_scale(&self) -> Option<f64> {
        product(self.first.loss_scale(), self.then.loss_scale())
    }

    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let closes = grads.closes();
        match self.first.collect(master, grads)? {
            Outcome::Apply(grads) => self.then.collect(master, grads),
            Outcome::Hold => Ok(Outcome::Hold),
            Outcome::Skip(reason) => self.then.collect(master, Grads::skipped(reason, closes)),
        }
    }

    fn held_bytes(&self) -> usize {
        self.first.held_bytes() + self.then.held_bytes()
    }

    fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        self.first.after_window(settled)?;
        self.then.after_window(settled)
    }

    fn save(&self, states: &mut Vec<StageState>) {
        self.first.save(states);
        self.then.save(states);
    }

    fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        self.first.restore(states)?;
        self.then.restore(states)
    }
}

/// Returns the product of the loss scales of two stages, or the only one, or `None`.
fn product(first: Option<f64>, then: Option<f64>) -> Option<f64> {
    match (first, then) {
        (Some(first), Some(then)) => Some(first * then),
        (first, then) => first.or(then),
    }
}

impl<M, S: Strategy<M>> Strategy<M> for Option<S> {
    type Stage = Option<S::Stage>;

    fn world(&self) -> Option<&World> {
        self.as_ref()?.world()
    }

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        match self {
            Some(strategy) => strategy.adapt(model, adaptation),
            None => Ok(model),
        }
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError> {
        self.as_ref().map(|strategy| strategy.start(setup)).transpose()
    }
}

impl<M, S: Strategy<M>> Strategy<M> for Vec<S> {
    type Stage = Vec<S::Stage>;

    fn world(&self) -> Option<&World> {
        self.iter().find_map(|strategy| strategy.world())
    }

    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        self.iter().try_fold(model, |model, strategy| strategy.adapt(model, adaptation))
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError> {
        self.iter().map(|strategy| strategy.start(setup)).collect()
    }
}

/// Implements [`Stage`] for a sequence of stages, with the behaviour of their [`Stack`].
macro_rules! stage_in_sequence {
    ($container:ident, $name:literal) => {
        impl<M, S: Stage<M>> Stage<M> for $container<S> {
            fn name(&self) -> &'static str {
                $name
            }

            fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
                self.iter_mut().try_fold(model, |model, stage| stage.init_master(model))
            }

            fn publish(&mut self, master: M) -> Result<M, StrategyError> {
                self.iter_mut().rev().try_fold(master, |master, stage| stage.publish(master))
            }

            fn updated(&mut self, master: &M) {
                self.iter_mut().for_each(|stage| stage.updated(master));
            }

            fn averaged(&self) -> Option<M> {
                self.iter().find_map(|stage| stage.averaged())
            }

            fn resume_average(&mut self, averaged: M) {
                if let Some(stage) = self.iter_mut().find(|stage| stage.averaged().is_some()) {
                    stage.resume_average(averaged);
                }
            }

            fn shard(&self, parameter: ParamId) -> Option<Shard> {
                self.iter().find_map(|stage| stage.shard(parameter))
            }

            fn alias_master(&mut self, master: M, replica: &M) -> M {
                self.iter_mut().rev().fold(master, |master, stage| stage.alias_master(master, replica))
            }

            fn unalias_master(&mut self, master: M) -> M {
                self.iter_mut().fold(master, |master, stage| stage.unalias_master(master))
            }

            fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError> {
                let mut stages = self.iter_mut().rev();
                stages.try_fold(replica, |replica, stage| stage.evaluator(master, replica))
            }

            fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
                let mut stages = self.iter_mut().rev();
                stages.try_fold(Some(master), |master, stage| match master {
                    Some(master) => stage.gather_full(master, root),
                    None => Ok(None),
                })
            }

            fn loss_scale(&self) -> Option<f64> {
                self.iter().map(|stage| stage.loss_scale()).fold(None, product)
            }

            fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
                let closes = grads.closes();
                self.iter_mut().try_fold(Outcome::Apply(grads), |outcome, stage| match outcome {
                    Outcome::Apply(grads) => stage.collect(master, grads),
                    Outcome::Hold => Ok(Outcome::Hold),
                    Outcome::Skip(reason) => stage.collect(master, Grads::skipped(reason, closes)),
                })
            }

            fn held_bytes(&self) -> usize {
                self.iter().map(|stage| stage.held_bytes()).sum()
            }

            fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError> {
                self.iter_mut().try_for_each(|stage| stage.after_window(settled))
            }

            fn save(&self, states: &mut Vec<StageState>) {
                self.iter().for_each(|stage| stage.save(states));
            }

            fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
                self.iter_mut().try_for_each(|stage| stage.restore(states))
            }
        }
    };
}

stage_in_sequence!(Option, "Option");
stage_in_sequence!(Vec, "Vec");

impl<M, S: Stage<M> + ?Sized> Stage<M> for Box<S> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        (**self).init_master(model)
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        (**self).publish(master)
    }

    fn updated(&mut self, master: &M) {
        (**self).updated(master);
    }

    fn averaged(&self) -> Option<M> {
        (**self).averaged()
    }

    fn resume_average(&mut self, averaged: M) {
        (**self).resume_average(averaged);
    }

    fn shard(&self, parameter: ParamId) -> Option<Shard> {
        (**self).shard(parameter)
    }

    fn alias_master(&mut self, master: M, replica: &M) -> M {
        (**self).alias_master(master, replica)
    }

    fn unalias_master(&mut self, master: M) -> M {
        (**self).unalias_master(master)
    }

    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError> {
        (**self).evaluator(master, replica)
    }

    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        (**self).gather_full(master, root)
    }

    fn loss_scale(&self) -> Option<f64> {
        (**self).loss_scale()
    }

    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        (**self).collect(master, grads)
    }

    fn held_bytes(&self) -> usize {
        (**self).held_bytes()
    }

    fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        (**self).after_window(settled)
    }

    fn save(&self, states: &mut Vec<StageState>) {
        (**self).save(states);
    }

    fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        (**self).restore(states)
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
