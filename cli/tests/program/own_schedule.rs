//! A program that adds a schedule of its own to `firebrick`.

use std::fs;

use firebrick::schedule::{ScheduleError, ScheduleRecipe, check};
use serde::{Deserialize, Serialize};

use crate::own_program::{self, program};
use crate::small_run::{RUN, folder_of};

/// A rate that is halved every `updates` updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Halved {
    lr: f64,
    updates: u64,
    floor: Option<f64>,
}

impl ScheduleRecipe for Halved {
    fn rate(&self, update: u64, _: u64) -> f64 {
        let rate = self.lr * 0.5f64.powi((update / self.updates) as i32);
        self.floor.map_or(rate, |floor| rate.max(floor))
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        check::above_zero("lr", self.lr)?;
        check::not_zero("updates", self.updates)
    }
}

#[test]
fn a_program_trains_with_a_schedule_of_its_own() {
    let folder = folder_of(RUN, 40);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = format!("data.path={:?}", path("text.txt"));
    let output = format!("output={:?}", path("out"));
    let train = |steps: &str, updates: &str, more: &[&str]| {
        let own = [&*data, &output, "checkpoints=(every: 2)", "schedule=Halved(lr: 0.5, updates: 2)"];
        let file = path("run.ron");
        let arguments = [&["train", &file, "--plain"], more].concat();
        own_program::run(&arguments, &[&own[..], &[steps, updates]].concat())
    };
    let resumed = ["--resume", "latest"];
    assert!(train("steps=2", "schedule.updates=2", &[]));
    // Its checkpoint is compared with it, whatever of its settings changes.
    assert!(!train("steps=4", "schedule.updates=3", &resumed));
    assert!(train("steps=4", "schedule.updates=2", &resumed));
    let log = fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    for rate in ["0.5", "0.25"] {
        assert_eq!(log.matches(&format!("\"learning_rate\":{rate},")).count(), 2, "{log}");
    }
    assert!(!train("steps=4", "schedule.updates=0", &[]));

    // The run file in the output folder names it, and so do its checkpoints and the errors.
    let saved = fs::read_to_string(folder.path().join("out/run.ron")).unwrap();
    let parse = |sets: &[&str]| program().parse("run.ron", &saved, sets).map_err(|error| error.to_string());
    let schedule = parse(&[]).unwrap().schedule;
    assert_eq!(schedule.downcast_ref(), Some(&Halved { lr: 0.5, updates: 2, floor: None }));
    let state = fs::read_to_string(folder.path().join("out/checkpoints/step-00000002/trainer.json")).unwrap();
    assert!(state.contains("\"Halved\": {"), "{state}");
    let state = firebrick::checkpoint::TrainerState::parse(&state).unwrap();
    assert!(state.to_json().unwrap().contains("Halved"));
    for (set, expected) in [
        ("schedule=Havled()", "unknown name `Havled` (did you mean `Halved`?); expected one of Constant, "),
        (
            "schedule.updaets=2",
            "unknown name `updaets` (did you mean `updates`?); expected one of lr, updates, floor",
        ),
        ("schedule.updates=0", "`schedule.updates` must be at least 1, found 0"),
    ] {
        let said = parse(&[set]).unwrap_err();
        assert!(said.contains(expected), "{said}");
    }
}
