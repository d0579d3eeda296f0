//! What observers see of a run, compared with its log.

use std::sync::mpsc::{Sender, channel};

use crate::support::*;
use firebrick::{
    Checkpoints, Data, EvaluationNumbers, EvaluationProgress, FailedWrites, Observer, Report, Resume, Round,
    SaveNumbers, Schedule, StepNumbers, Trainer, World, Zero,
};

/// Names what it sees, as the log does.
struct Seen(Sender<(&'static str, u64)>);

impl Observer for Seen {
    fn step(&mut self, numbers: &StepNumbers) {
        self.0.send(("train", numbers.step)).unwrap();
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        self.0.send(("valid", numbers.step)).unwrap();
    }

    fn saved(&mut self, numbers: &SaveNumbers) {
        self.0.send(("checkpoint", numbers.step)).unwrap();
    }

    fn ended(&mut self, report: &Report) {
        self.0.send(("ended", report.steps)).unwrap();
    }
}

#[test]
fn observers_see_every_line_of_the_log_once_on_one_rank_and_on_many() {
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let (sender, seen) = channel();
        let (steps, of_steps) = channel();
        // The global batch of the third step is poisoned, so it makes no update.
        let mut rows = Rows::ragged(20);
        rows.0[9].push(POISON);
        let trainer = Trainer::new()
            .with((ranks > 1).then(|| Zero::stage(0).over(World::threads(ranks))))
            .steps(4)
            .evaluate_every(2)
            .output(&output)
            .checkpoints(Checkpoints::every(2))
            .observe(Seen(sender))
            .observe(move |step: &StepNumbers| steps.send(step.skipped.is_some()).unwrap());
        let data = Data::new(rows).micro_batch(4 / ranks).valid(Rows::ragged(7));
        let model = Bigram::new(&device().autodiff());
        trainer.fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();

        let log = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let logged =
            lines.map(|line| (line["kind"].as_str().unwrap().to_string(), line["step"].as_u64().unwrap()));
        let logged: Vec<_> = logged.chain([("ended".to_string(), 4)]).collect();
        let seen: Vec<_> = seen.iter().map(|(kind, step)| (kind.to_string(), step)).collect();
        assert_eq!(seen, logged);
        assert_eq!(of_steps.iter().collect::<Vec<_>>(), [false, false, true, false, false]);
        for kind in ["valid", "checkpoint"] {
            assert_eq!(seen.iter().filter(|(seen, _)| seen == kind).count(), 2, "{seen:?}");
        }
    }
}

/// Notes the parts of a run, as `r1` for the start of round 1, and has a file that cannot be written.
struct Parts(Sender<String>);

impl Observer for Parts {
    fn round_started(&mut self, round: &Round) {
        self.0.send(format!("r{}+{}/{}", round.number, round.start, round.updates)).unwrap();
    }

    fn step(&mut self, numbers: &StepNumbers) {
        self.0.send(format!("s{}", numbers.step)).unwrap();
    }

    fn round_trained(&mut self) {
        self.0.send("t".into()).unwrap();
    }

    fn evaluating(&mut self, progress: &EvaluationProgress) {
        let known = if progress.loss.is_some() { "l" } else { "" };
        self.0.send(format!("e{}/{}{known}", progress.done, progress.samples)).unwrap();
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        self.0.send(format!("v{}", numbers.step)).unwrap();
    }

    fn flush(&mut self) {
        self.0.send("f".into()).unwrap();
    }

    fn failed_writes(&self) -> Vec<FailedWrites> {
        vec![FailedWrites { file: "parts".into(), failures: 1, error: None }]
    }
}

#[test]
fn observers_see_the_rounds_of_a_run_and_write_before_each_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = |ranks, output: &str, resume: Option<Resume>| {
        let (sender, parts) = channel();
        let trainer = Trainer::new()
            .with((ranks > 1).then(|| Zero::stage(0).over(World::threads(ranks))))
            .steps(4)
            .evaluate_every(2)
            .output(folder.path().join(output))
            .checkpoints(Checkpoints::every(3).keep_last(9))
            .observe(Parts(sender));
        let trainer = match resume {
            Some(resume) => trainer.resume(resume),
            None => trainer,
        };
        let data = Data::new(Rows::ragged(20)).micro_batch(4 / ranks).valid(Rows::ragged(8));
        let model = Bigram::new(&device().autodiff());
        let trained = trainer.fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();
        assert_eq!(trained.report.failed_writes[0].file, "parts");
        parts.iter().collect::<Vec<_>>().join(" ")
    };
    let second = "r2+2/2 s3 f s4 t e4/8l e8/8l v4";
    assert_eq!(run(1, "one", None), format!("r1+0/2 s1 s2 t e4/8l e8/8l v2 {second} f f"));
    // Only the sum of the ranks has a loss.
    let several = run(2, "two", None);
    assert!(several.starts_with("r1+0/2 s1 s2 t e4/8 e8/8 e8/8l v2 r2"), "{several}");
    let went_on = run(1, "one", Some(Resume::Step(3)));
    assert_eq!(went_on, "r2+2/2 s4 t e4/8l e8/8l v4 f f");
}
