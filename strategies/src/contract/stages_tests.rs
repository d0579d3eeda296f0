//! The order in which a composition calls its stages.

use super::*;
use crate::{Composed, Composition, Effects, Setup, SkipReason, Strategy, StrategyRecipe, testing};

/// Records the order of its calls.
#[derive(Clone, Debug)]
struct Note(&'static str);

impl StrategyRecipe for Note {
    fn effects(&self) -> Effects {
        Effects::none(self.0)
    }
}

impl Strategy<String> for Note {
    fn stages(&self, _: &mut Setup<String>) -> Result<Stages<String>, StrategyError> {
        Ok(Stages::of(self.clone()))
    }
}

impl Stage<String> for Note {
    fn name(&self) -> &'static str {
        self.0
    }

    fn publishes(&self) -> Publishes {
        Publishes::Together
    }

    fn init_master(&mut self, model: String) -> Result<String, StrategyError> {
        Ok(model + self.0)
    }
    fn publish(&mut self, master: String) -> Result<String, StrategyError> {
        Ok(master + self.0)
    }
    fn evaluates_master(&self) -> bool {
        self.0 == "m"
    }
    fn evaluator(&mut self, master: &String, replica: String) -> Result<String, StrategyError> {
        Ok(replica + master + self.0)
    }

    fn alias_master(&mut self, master: String, replica: &String) -> String {
        master + replica + self.0
    }
    fn unalias_master(&mut self, master: String) -> String {
        master + self.0
    }
    fn gather_full(&mut self, master: String, root: Option<usize>) -> Result<Option<String>, StrategyError> {
        Ok(root.is_none().then(|| master + self.0))
    }

    fn loss_scale(&self) -> Option<f64> {
        (self.0 != "b").then_some(2.0)
    }
    fn held_bytes(&self) -> usize {
        21
    }
    fn loss_scale_after(&self, settled: &Settled) -> Option<f64> {
        (self.0 != "b").then_some(if *settled == Settled::Applied { 3.0 } else { 0.5 })
    }
    fn after_step(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        match settled {
            Settled::Applied => Ok(()),
            Settled::Skipped(_) => Err(StrategyError::Twice(self.0)),
        }
    }
}

fn start(strategy: impl Composition<String>) -> Stages<String> {
    let (model, device) = (String::new(), testing::device());
    strategy.start(&mut Setup::new(&model, &device)).unwrap()
}

/// The same composition, written in every way.
fn compositions() -> [Stages<String>; 4] {
    let list = vec![Note("a"), Note("b"), Note("c")];
    [
        start(Composed::new().with(Note("a")).with(Note("b")).with(Note("c"))),
        start(Composed::new().with(Some(Note("a"))).with(None::<Note>).with(list[1..].to_vec())),
        start(Composed::new().with(Composed::new().with(Note("a")).with(vec![
            Some(Note("b")),
            None,
            Some(Note("c")),
        ]))),
        start(list),
    ]
}

#[test]
fn own_runs_forward_and_publish_backward_however_composed() {
    for mut stages in compositions() {
        let states = stages.save();
        assert_eq!(states, ["a", "b", "c"].map(StageState::new));
        let mut saved = SavedStates::new(states);
        stages.restore(&mut saved).unwrap();
        saved.finish().unwrap();
        assert_eq!(stages.init_master(String::new()).unwrap(), "abc");
        assert_eq!(stages.publish(String::new()).unwrap(), "cba");
        assert_eq!(stages.alias_master(String::new(), &"r".into()), "rcrbra");
        assert_eq!(stages.unalias_master(String::new()), "abc");
        assert_eq!(stages.gather_full(String::new(), None).unwrap().unwrap(), "cba");
        assert_eq!(stages.gather_full(String::new(), Some(0)).unwrap(), None);
    }
}

#[test]
fn evaluation_scale_and_what_became_of_a_step_reach_every_stage() {
    for mut stages in compositions() {
        assert_eq!(stages.evaluator(&"m".into(), String::new()).unwrap(), "mcmbma");
        assert_eq!((stages.loss_scale(), stages.held_bytes()), (Some(4.0), 63));
        let skipped = Settled::Skipped(SkipReason::NoItems);
        assert_eq!([Settled::Applied, skipped].map(|x| stages.loss_scale_after(&x)), [Some(9.0), Some(0.25)]);
        assert_eq!(stages.after_step(&Settled::Applied), Ok(()));
        let skipped = Settled::Skipped(SkipReason::NoItems);
        assert_eq!(stages.after_step(&skipped), Err(StrategyError::Twice("a")), "the first that sees a skip");
    }
    assert_eq!(start(Composed::new().with(None::<Note>)).loss_scale(), None);
}

/// What a stage evaluates of the master has come through the stages after it.
#[test]
fn a_stage_that_evaluates_the_master_receives_what_it_publishes() {
    let mut stages = start(vec![Note("a"), Note("m"), Note("b"), Note("c")]);
    assert_eq!(stages.evaluator(&"-".into(), String::new()).unwrap(), "-c-b-cbm-a");
}

/// Averages by keeping the last master, holds every gradient, and belongs to no other group.
#[derive(Clone, Debug, Default)]
struct Last(Option<String>);

impl StrategyRecipe for Last {
    fn effects(&self) -> Effects {
        Effects::none("Last")
    }
}

impl Strategy<String> for Last {
    fn stages(&self, _: &mut Setup<String>) -> Result<Stages<String>, StrategyError> {
        Ok(Stages::of(self.clone()))
    }
}

impl Stage<String> for Last {
    fn name(&self) -> &'static str {
        "Last"
    }

    fn collect(&mut self, _: &String, _: Grads) -> Result<Outcome, StrategyError> {
        Ok(Outcome::Hold)
    }

    fn updated(&mut self, master: &String) {
        self.0 = Some(master.clone());
    }
    fn averages(&self) -> bool {
        true
    }
    fn averaged(&self) -> Option<String> {
        self.0.clone()
    }
    fn resume_average(&mut self, averaged: String) {
        self.0 = Some(averaged);
    }
}

#[test]
fn updates_reach_every_stage_and_the_one_that_averages_answers() {
    let mut stages = start(Composed::new().with(Note("a")).with(Last::default()));
    assert_eq!(stages.averaged(), None);
    stages.updated(&"m".into());
    assert_eq!(stages.averaged(), Some("m".into()));
    stages.resume_average("saved".into());
    assert_eq!(stages.averaged(), Some("saved".into()));
}

#[test]
fn a_stage_that_holds_a_complete_step_is_named() {
    let mut stages = start(Composed::new().with(Note("a")).with(Last::default()).with(Note("b")));
    let mut collect = |closes| {
        stages.collect(&String::new(), Grads::new(burn::optim::GradientsParams::new(), closes)).map(drop)
    };
    assert_eq!(collect(false), Ok(()));
    assert_eq!(collect(true), Err(StrategyError::Held("Last")));
}
