//! The schedules compared with Transformers and DeepSpeed; see `tests/golden/README.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::channel;

use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use firebrick::schedule::of_burn;
use firebrick::{Checkpoints, Data, LrSchedule, Resume, Schedule, StepNumbers, TrainError, Trainer};
use serde::Deserialize;

use crate::support::*;

#[derive(Deserialize)]
struct Golden {
    /// Updates of the run; the rates continue a little beyond.
    total: u64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// The function or class that computed them.
    of: String,
    schedule: Schedule,
    rates: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/schedules.json")).unwrap()
}

#[test]
fn schedules_are_those_of_transformers_and_deepspeed_to_1e_12() {
    let Golden { total, cases } = golden();
    let mut compared = BTreeMap::new();
    for Case { of, schedule, rates } in cases {
        assert_eq!(schedule.check(Some(total)), Ok(()), "{of}: {schedule:?}");
        assert!(rates.len() as u64 > total, "{of}");
        for (update, expected) in rates.iter().enumerate() {
            let found = schedule.rate(update as u64, total);
            assert!(
                (found - expected).abs() <= 1e-12 * expected,
                "{of}: {schedule:?} update {update}: {found} {expected}"
            );
        }
        *compared.entry(of).or_insert(0) += 1;
    }
    assert_eq!(compared.len(), 13, "{compared:?}");
    assert_eq!(compared.values().sum::<i32>(), 52, "{compared:?}");
}

#[test]
fn the_warmup_of_golden_ratios_is_rounded_up() {
    let Golden { total, cases } = golden();
    let mut warmups = Vec::new();
    for Case { schedule, rates, .. } in cases {
        if format!("{schedule:?}").contains("Ratio(") {
            // The first update at the highest rate.
            let highest = rates.iter().position(|rate| *rate == rates.iter().copied().fold(0.0, f64::max));
            assert_eq!(highest, Some(schedule.warmup_updates(total) as usize));
            warmups.push(schedule.warmup_updates(total));
        }
    }
    assert_eq!(warmups, [5, 4, 8]);
}

/// Returns the rates of a run's steps: five of them, or those after a checkpoint.
fn rates(
    schedule: impl LrSchedule + 'static,
    output: &Path,
    resume: Option<Resume>,
) -> Result<Vec<f64>, TrainError> {
    let (sender, rates) = channel();
    let trainer = Trainer::new().steps(5).output(output).checkpoints(Checkpoints::every(2).keep_last(9));
    let trainer = match resume {
        Some(from) => trainer.resume(from),
        None => trainer,
    };
    let trainer = trainer.observe(move |step: &StepNumbers| sender.send(step.learning_rate).unwrap());
    let data = Data::new(Rows::ragged(9)).micro_batch(2);
    trainer.fit(Bigram::new(&device().autodiff()), adamw(), schedule, data)?;
    Ok(rates.iter().collect())
}

#[test]
fn a_function_and_a_scheduler_of_burn_are_schedules_and_resume() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let function = |update: u64| 1e-3 / (update + 1) as f64;
    let expected: Vec<f64> = (0..5).map(function).collect();
    assert_eq!(rates(function, &output, None).unwrap(), expected);
    assert_eq!(rates(function, &output, Some(Resume::Step(2))).unwrap(), expected[2..]);
    let error = rates(Schedule::constant(1e-3), &output, Some(Resume::Step(2))).unwrap_err().to_string();
    assert!(error.contains("`schedule` was a function, and is Constant"), "{error}");

    let output = folder.path().join("burn");
    let scheduler = || of_burn(ExponentialLrSchedulerConfig::new(1e-2, 0.5)).unwrap();
    let expected: Vec<f64> = (0..5).map(|update| 1e-2 * 0.5f64.powi(update)).collect();
    assert_eq!(rates(scheduler(), &output, None).unwrap(), expected);
    assert_eq!(rates(scheduler(), &output, Some(Resume::Step(4))).unwrap(), expected[4..]);
}

#[test]
fn a_rate_that_no_update_can_use_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in [f64::NAN, f64::INFINITY, -1e-3] {
        let schedule = move |update: u64| if update == 2 { wrong } else { 1e-3 };
        let error = rates(schedule, &folder.path().join("run"), None).unwrap_err();
        let TrainError::LearningRate { update: 2, rate } = error else { panic!("{error}") };
        assert!(rate == wrong || rate.is_nan() && wrong.is_nan());
    }
}
