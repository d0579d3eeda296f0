//! Composition: two strategies are a strategy, and so are none, an optional one, and a list.

use crate::{Grads, Outcome, SavedStates, Settled, Setup, Stage, StageState, Strategy, StrategyError};

/// The strategy that changes nothing.
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

/// Two strategies, or two stages, in the order in which gradients meet them.
#[derive(Clone, Debug)]
pub struct Stack<A, B> {
    first: A,
    then: B,
}

impl<A, B> Stack<A, B> {
    /// `first`, then `then`.
    pub fn new(first: A, then: B) -> Self {
        Self { first, then }
    }
}

impl<M, A: Strategy<M>, B: Strategy<M>> Strategy<M> for Stack<A, B> {
    type Stage = Stack<A::Stage, B::Stage>;

    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError> {
        Ok(Stack::new(self.first.start(setup)?, self.then.start(setup)?))
    }
}

impl<M, A: Stage<M>, B: Stage<M>> Stage<M> for Stack<A, B> {
    fn name(&self) -> &'static str {
        "Stack"
    }

    fn own(&mut self, model: M) -> M {
        self.then.own(self.first.own(model))
    }

    fn publish(&mut self, master: M) -> M {
        self.first.publish(self.then.publish(master))
    }

    fn evaluator(&mut self, master: &M, replica: M) -> M {
        self.first.evaluator(master, self.then.evaluator(master, replica))
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

    fn settled(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        self.first.settled(settled)?;
        self.then.settled(settled)
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

/// The scale of two stages, where at least one scales.
fn product(first: Option<f64>, then: Option<f64>) -> Option<f64> {
    match (first, then) {
        (Some(first), Some(then)) => Some(first * then),
        (first, then) => first.or(then),
    }
}

impl<M, S: Strategy<M>> Strategy<M> for Option<S> {
    type Stage = Option<S::Stage>;

    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError> {
        self.as_ref().map(|strategy| strategy.start(setup)).transpose()
    }
}

impl<M, S: Strategy<M>> Strategy<M> for Vec<S> {
    type Stage = Vec<S::Stage>;

    fn start(&self, setup: &mut Setup<M>) -> Result<Self::Stage, StrategyError> {
        self.iter().map(|strategy| strategy.start(setup)).collect()
    }
}

/// A sequence of stages behaves as their [`Stack`], whatever it is stored in.
macro_rules! stage_in_sequence {
    ($container:ident, $name:literal) => {
        impl<M, S: Stage<M>> Stage<M> for $container<S> {
            fn name(&self) -> &'static str {
                $name
            }

            fn own(&mut self, model: M) -> M {
                self.iter_mut().fold(model, |model, stage| stage.own(model))
            }

            fn publish(&mut self, master: M) -> M {
                let stages = self.iter_mut().rev();
                stages.fold(master, |master, stage| stage.publish(master))
            }

            fn evaluator(&mut self, master: &M, replica: M) -> M {
                let stages = self.iter_mut().rev();
                stages.fold(replica, |replica, stage| stage.evaluator(master, replica))
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

            fn settled(&mut self, settled: &Settled) -> Result<(), StrategyError> {
                self.iter_mut().try_for_each(|stage| stage.settled(settled))
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

    fn own(&mut self, model: M) -> M {
        (**self).own(model)
    }

    fn publish(&mut self, master: M) -> M {
        (**self).publish(master)
    }

    fn evaluator(&mut self, master: &M, replica: M) -> M {
        (**self).evaluator(master, replica)
    }

    fn loss_scale(&self) -> Option<f64> {
        (**self).loss_scale()
    }

    fn collect(&mut self, master: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        (**self).collect(master, grads)
    }

    fn settled(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        (**self).settled(settled)
    }

    fn save(&self, states: &mut Vec<StageState>) {
        (**self).save(states);
    }

    fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        (**self).restore(states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Notes the order in which it is called.
    #[derive(Clone, Debug)]
    struct Note(&'static str);

    impl Strategy<String> for Note {
        type Stage = Note;
        fn start(&self, _: &mut Setup<String>) -> Result<Note, StrategyError> {
            Ok(self.clone())
        }
    }

    impl Stage<String> for Note {
        fn name(&self) -> &'static str {
            self.0
        }
        fn own(&mut self, model: String) -> String {
            model + self.0
        }
        fn publish(&mut self, master: String) -> String {
            master + self.0
        }
        fn evaluator(&mut self, master: &String, replica: String) -> String {
            replica + master + self.0
        }
        fn loss_scale(&self) -> Option<f64> {
            (self.0 != "b").then_some(2.0)
        }
        fn settled(&mut self, settled: &Settled) -> Result<(), StrategyError> {
            match settled {
                Settled::Applied => Ok(()),
                Settled::Skipped(_) => Err(StrategyError::Twice(self.0)),
            }
        }
    }

    fn orders(strategy: impl Strategy<String>) -> (String, String, Vec<StageState>) {
        let (model, device) = (String::new(), testing::device());
        let mut stage = strategy.start(&mut Setup::new(&model, &device)).unwrap();
        let mut states = vec![];
        stage.save(&mut states);
        stage.restore(&mut SavedStates::new(states.clone())).unwrap();
        (stage.own(String::new()), stage.publish(String::new()), states)
    }

    #[test]
    fn own_runs_forward_and_publish_backward_however_composed() {
        let stack = Stack::new(Stack::new(Identity, Note("a")), Stack::new(Note("b"), Note("c")));
        let list = vec![Note("a"), Note("b"), Note("c")];
        let optional = Stack::new(Some(Note("a")), Stack::new(None::<Note>, list[1..].to_vec()));
        let states: Vec<_> = ["a", "b", "c"].map(StageState::new).into();
        let expected = ("abc".to_string(), "cba".to_string(), states);
        assert_eq!(orders(stack), expected);
        assert_eq!(orders(list), expected);
        assert_eq!(orders(optional), expected);
    }

    /// What a composition evaluates, scales by, and which stage hears first of a skip.
    fn forwarded(mut stage: impl Stage<String>) -> (String, Option<f64>, &'static str) {
        assert_eq!(stage.settled(&Settled::Applied), Ok(()));
        let skipped = Settled::Skipped(crate::SkipReason::NoItems);
        let Err(StrategyError::Twice(first)) = stage.settled(&skipped) else { panic!("a stage objects") };
        (stage.evaluator(&"m".into(), String::new()), stage.loss_scale(), first)
    }

    #[test]
    fn evaluation_scale_and_what_became_of_a_window_reach_every_stage() {
        let stack = Stack::new(Stack::new(Identity, Note("a")), Stack::new(Some(Note("b")), Note("c")));
        let expected = ("mcmbma".to_string(), Some(4.0), "a");
        assert_eq!(forwarded(stack), expected);
        assert_eq!(forwarded(vec![Note("a"), Note("b"), Note("c")]), expected);
        assert_eq!(Stage::<String>::loss_scale(&Stack::new(Identity, None::<Note>)), None);
    }

    #[test]
    fn a_boxed_stage_is_a_stage() {
        let mut stage: Vec<Box<dyn Stage<String>>> = vec![Box::new(Note("a")), Box::new(Note("b"))];
        assert_eq!(stage.publish(String::new()), "ba");
        assert_eq!(forwarded(stage), ("mbma".to_string(), Some(2.0), "a"));
    }
}
