//! When a run evaluates and stops, and what it keeps.

use std::fs;

use crate::support::*;
use burn::module::Module;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use firebrick::{
    Amp, Checkpoints, Data, EvaluationSums, Interrupter, Resume, Schedule, Score, Trainer, World, Zero,
};

fn model() -> Bigram {
    Bigram::new(&device().autodiff())
}

/// Returns kind and step of each line of the log, as in `t1 t2 v2`.
fn log(folder: &std::path::Path) -> String {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let short = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        format!("{}{}", &line["kind"].as_str().unwrap()[..1], line["step"])
    };
    text.lines().map(short).collect::<Vec<_>>().join(" ")
}

#[test]
fn evaluations_come_every_so_many_updates_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let data = Data::new(Rows::ragged(12)).valid(Rows::ragged(4)).micro_batch(4);
    let trainer = Trainer::new().steps(5).evaluate_every(2).output(folder.path().join("run"));
    trainer.fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap();
    assert_eq!(log(&folder.path().join("run")), "t1 t2 v2 t3 t4 v4 t5 v5");
}

/// Without an item there is no loss. The training loses nothing by it.
#[test]
fn an_evaluation_without_items_does_not_end_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // The only token of a row is never predicted, and without a row there is none.
    for (name, rows) in [("items", vec![vec![1], vec![2]]), ("rows", vec![])] {
        for ranks in [1, 2] {
            let data = Data::new(Rows::ragged(12)).valid(Rows(rows.clone())).micro_batch(4 / ranks);
            let output = folder.path().join(format!("{name} {ranks}"));
            let trainer = Trainer::new().steps(4).evaluate_every(2).early_stopping(1).output(&output);
            let trainer = trainer.over(World::threads(ranks)).with((ranks > 1).then(|| Zero::stage(3)));
            // The trial of a smaller dtype looks for a batch, too.
            let trainer = trainer.with(has_bf16().then(Amp::bf16));
            trainer.fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap();
            assert_eq!(log(&output), "t1 t2 t3 t4");
        }
    }
}

#[test]
fn without_a_number_they_come_after_each_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let data = Data::new(Rows::ragged(6)).valid(Rows::ragged(4)).micro_batch(4);
    let trainer = Trainer::new().epochs(2).output(folder.path().join("run"));
    trainer.fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap();
    assert_eq!(log(&folder.path().join("run")), "t1 t2 v2 t3 t4 v4");
}

#[test]
fn a_skipped_step_is_no_reason_to_evaluate_again() {
    if !has_bf16() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut rows = Rows::ragged(6).0;
    rows[0] = vec![1, POISON];
    rows[3] = vec![1, POISON];
    let data = Data::new(Rows(rows)).valid(Rows::ragged(4)).micro_batch(1);
    let trainer = Trainer::new().with(Amp::bf16()).steps(4).evaluate_every(2);
    let trained = trainer.output(folder.path().join("run"));
    let trained = trained.fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap();
    assert_eq!(log(&folder.path().join("run")), "t0 t1 t2 v2 t2 t3 t4 v4");
    assert_eq!(trained.report.skipped_steps, 2);
}

#[test]
fn a_resumed_round_keeps_a_line_for_each_step_whether_it_was_skipped_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let train = |resume: Option<Resume>| {
        let mut rows = Rows::ragged(9).0;
        for skipped in [1, 5, 6] {
            rows[skipped] = vec![1, POISON];
        }
        let data = Data::new(Rows(rows)).valid(Rows::ragged(4)).micro_batch(1);
        let trainer = Trainer::new().steps(6).evaluate_every(3).output(&run);
        let trainer = trainer.checkpoints(Checkpoints::every(1).keep_every(1));
        trainer.resume(resume).fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap();
        // A step without an update has no loss of its own.
        let lines = |name: &str, round: usize| {
            let path = run.join(format!("metrics/train/epoch-{round}/{name}.log"));
            let values = fs::read_to_string(path).unwrap();
            values.lines().filter(|line| !line.ends_with("final")).map(String::from).collect::<Vec<_>>()
        };
        [1, 2].map(|round| (lines("Skipped_steps", round), lines("Loss", round).len()))
    };
    let whole = train(None);
    assert_eq!(
        whole.each_ref().map(|(_, losses)| *losses),
        [4, 5],
        "three updates, and one and two skipped steps"
    );
    for step in 1..6 {
        assert_eq!(train(Some(Resume::Step(step))), whole, "on from step {step}");
    }
}

#[test]
fn the_best_model_is_kept_and_evaluates_to_its_loss() {
    let folder = tempfile::tempdir().unwrap();
    // Few training rows, and other validation rows: the loss falls, and then rises.
    let others = Rows(Rows::ragged(40).0.split_off(20));
    let data = || Data::new(Rows::ragged(6)).valid(others.clone()).micro_batch(6);
    let trainer = Trainer::new().steps(150).evaluate_every(5).output(folder.path().join("run"));
    let trained = trainer.fit(model(), adamw(), Schedule::constant(3e-2), data()).unwrap();
    let report = trained.report;
    assert!(report.best_valid_loss < report.valid_loss, "{report:?}");

    let mut best = model().valid();
    let path = trained.best.unwrap();
    best.load_from(&mut SafetensorsStore::from_file(path)).unwrap();
    let again = Trainer::new().steps(1).fit(best.train(), adamw(), Schedule::constant(1e-30), data());
    let loss = again.unwrap().report.valid_loss.unwrap();
    assert!((loss - report.best_valid_loss.unwrap()).abs() < 1e-6);
}

#[test]
fn it_ends_when_the_validation_loss_no_longer_falls() {
    let data = Data::new(Rows::ragged(12)).valid(Rows::ragged(5)).micro_batch(4);
    let trainer = Trainer::new().steps(500).evaluate_every(1).early_stopping(3);
    let trained = trainer.fit(model(), adamw(), Schedule::constant(1.0), data).unwrap();
    let report = trained.report;
    assert_eq!(report.steps, report.best_step.unwrap() + 3);
    assert!(report.stopped.unwrap().contains("no longer falls"));
}

#[test]
fn an_interrupter_ends_it_at_the_step() {
    let interrupter = Interrupter::new();
    let stop = interrupter.clone();
    let data = Data::new(Rows::ragged(12)).micro_batch(4);
    let trainer = Trainer::new().steps(500).evaluate_every(100).interrupter(interrupter);
    let watch = move |step: &firebrick::StepNumbers| {
        if step.step == 3 {
            stop.stop(Some("enough"));
        }
    };
    let trained = trainer.observe(watch).fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap();
    assert_eq!(trained.report.stopped.as_deref(), Some("enough"));
    assert_eq!(trained.report.steps, 4, "step 3 is read while step 4 is under way");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let fit = |trainer: Trainer<_>, micro, valid: Rows| {
        let data = Data::new(Rows::ragged(4)).valid(valid).micro_batch(micro);
        trainer.fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap_err().to_string()
    };
    let valid = || Rows::ragged(2);
    assert!(fit(Trainer::new().steps(0), 1, valid()).contains("`steps` must be at least 1"));
    assert!(fit(Trainer::new().evaluate_every(0), 1, valid()).contains("evaluate_every"));
    assert!(fit(Trainer::new().early_stopping(0), 1, valid()).contains("early_stopping"));
    assert!(fit(Trainer::new(), 0, valid()).contains("micro_batch"));
    let bits = |sums: &EvaluationSums| Score::lower("bits", sums.loss);
    let selects = Trainer::new().score(bits).best_by("bits");
    assert!(fit(selects.clone(), 1, Rows(vec![])).contains("no record of the validation data, whose bits"));
    assert!(
        fit(selects, 1, Rows(vec![vec![1]])).contains("none of 1 sample of the validation data, whose bits")
    );

    let clips = burn::optim::AdamWConfig::new()
        .with_grad_clipping(Some(burn::grad_clipping::GradientClippingConfig::Norm(1.0)))
        .init();
    let data = Data::new(Rows::ragged(4));
    let error = Trainer::new().fit(model(), clips, Schedule::constant(1e-2), data).unwrap_err();
    assert!(error.to_string().contains("Clip::norm"), "{error}");
}
