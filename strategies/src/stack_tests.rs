//! The order in which a composition calls its stages.

use super::*;
use crate::testing;

/// Records the order of its calls.
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
    fn init_master(&mut self, model: String) -> Result<String, StrategyError> {
        Ok(model + self.0)
    }
    fn publish(&mut self, master: String) -> Result<String, StrategyError> {
        Ok(master + self.0)
    }
    fn alias_master(&mut self, master: String, replica: &String) -> String {
        master + replica + self.0
    }
    fn unalias_master(&mut self, master: String) -> String {
        master + self.0
    }
    fn evaluator(&mut self, master: &String, replica: String) -> Result<String, StrategyError> {
        Ok(replica + master + self.0)
    }
    fn gather_full(&mut self, master: String, root: Option<usize>) -> Result<Option<String>, StrategyError> {
        Ok(root.is_none().then(|| master + self.0))
    }
    fn loss_scale(&self) -> Option<f64> {
        (self.0 != "b").then_some(2.0)
    }
    fn after_window(&mut self, settled: &Settled) -> Result<(), StrategyError> {
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
    let kept = stage.alias_master(String::new(), &"r".into());
    assert_eq!(kept, "rcrbra");
    assert_eq!(stage.unalias_master(String::new()), "abc");
    assert_eq!(stage.gather_full(String::new(), None).unwrap().unwrap(), "cba");
    assert_eq!(stage.gather_full(String::new(), Some(0)).unwrap(), None);
    (stage.init_master(String::new()).unwrap(), stage.publish(String::new()).unwrap(), states)
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

/// Returns the evaluation model, the loss scale, and the first stage that sees a skip.
fn forwarded(mut stage: impl Stage<String>) -> (String, Option<f64>, &'static str) {
    assert_eq!(stage.after_window(&Settled::Applied), Ok(()));
    let skipped = Settled::Skipped(crate::SkipReason::NoItems);
    let Err(StrategyError::Twice(first)) = stage.after_window(&skipped) else { panic!("a stage objects") };
    (stage.evaluator(&"m".into(), String::new()).unwrap(), stage.loss_scale(), first)
}

#[test]
fn evaluation_scale_and_what_became_of_a_window_reach_every_stage() {
    let stack = Stack::new(Stack::new(Identity, Note("a")), Stack::new(Some(Note("b")), Note("c")));
    let expected = ("mcmbma".to_string(), Some(4.0), "a");
    assert_eq!(forwarded(stack), expected);
    assert_eq!(forwarded(vec![Note("a"), Note("b"), Note("c")]), expected);
    assert_eq!(Stage::<String>::loss_scale(&Stack::new(Identity, None::<Note>)), None);
}

/// Averages by keeping the last master.
#[derive(Default)]
struct Last(Option<String>);

impl Stage<String> for Last {
    fn name(&self) -> &'static str {
        "Last"
    }
    fn updated(&mut self, master: &String) {
        self.0 = Some(master.clone());
    }
    fn averaged(&self) -> Option<String> {
        self.0.clone()
    }
    fn held_bytes(&self) -> usize {
        21
    }
}

#[test]
fn updates_reach_every_stage_and_the_one_that_averages_answers() {
    let boxed: Box<dyn Stage<String>> = Box::new(Stack::new(Last::default(), None::<Note>));
    let mut stage = Stack::new(Note("a"), Stack::new(Identity, vec![Some(boxed), None]));
    assert_eq!(stage.averaged(), None);
    stage.updated(&"m".into());
    assert_eq!(stage.averaged(), Some("m".into()));
    assert_eq!(Stack::new(Last::default(), stage).held_bytes(), 42);
}

#[test]
fn a_boxed_stage_is_a_stage() {
    let mut stage: Vec<Box<dyn Stage<String>>> = vec![Box::new(Note("a")), Box::new(Note("b"))];
    assert_eq!(stage.publish(String::new()).unwrap(), "ba");
    assert_eq!(forwarded(stage), ("mbma".to_string(), Some(2.0), "a"));
}
