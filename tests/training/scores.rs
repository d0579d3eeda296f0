//! Scores of an evaluation: computed over all batches and ranks, logged, reported, and used to select the best model.

use std::f64::consts::LN_2;

use crate::support::*;
use burn::module::Module;
use firebrick::datasets::{Batch, Batches, TokenBatch};
use firebrick::{
    Checkpoints, Clip, Data, Evaluation, EvaluationSums, Loss, Objective, Pass, Schedule, Score, TrainError,
    Trained, Trainer, World, Zero,
};

/// A bigram that sums the probabilities that it assigns to labels.
#[derive(Module, Debug)]
struct Counted {
    bigram: Bigram,
}

impl Objective<TokenBatch> for Counted {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        self.bigram.loss(batch, pass)
    }

    fn evaluate(&self, batch: TokenBatch, pass: &Pass) -> Evaluation {
        let (losses, mask) = self.bigram.losses(batch.ids(pass.device()), batch.labels(pass.device()));
        let right = (losses.neg().exp() * mask).sum().into_scalar::<f64>();
        let counts = vec![right, batch.items() as f64];
        Evaluation { loss: self.loss(batch, pass), counts }
    }

    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        let [right, all] = *counts else { return vec![Score::higher("accuracy", f64::NAN), worse(f64::NAN)] };
        vec![Score::higher("accuracy", right / all), worse(right / all)]
    }
}

/// A score for which lower is better, but which rises as this model learns.
fn worse(value: f64) -> Score {
    Score::lower("hits", value)
}

fn trained(trainer: Trainer<Counted>, ranks: usize) -> Result<Trained<Counted>, TrainError> {
    let model = Counted { bigram: Bigram::new(&device().autodiff()) };
    let data = Data::new(Rows::ragged(24)).valid(Rows::ragged(17)).micro_batch(4 / ranks);
    trainer.steps(12).evaluate_every(4).fit(model, adamw(), Schedule::constant(0.05), data)
}

#[test]
fn batches_and_ranks_are_scored_together() {
    let one = trained(Trainer::new(), 1).unwrap();
    let found = one.report.valid_scores["accuracy"];
    // Computed over all rows at once, by hand; a mean of the batches' means would differ.
    let all = Rows::ragged(17).batch(0, 0..17).unwrap();
    let items = all.items() as f64;
    let counts = one.model.evaluate(all, &Pass::evaluate(&device())).counts;
    assert_eq!(counts[1], items);
    assert!((found - counts[0] / items).abs() < 1e-6, "{found} {counts:?}");

    let two = trained(Trainer::new().over(World::threads(2)).with(Zero::stage(0)), 2).unwrap();
    assert!((two.report.valid_scores["accuracy"] - found).abs() < 1e-4, "{:?}", two.report.valid_scores);
}

#[test]
fn a_score_decides_which_evaluation_is_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let trainer = || Trainer::new().with(Clip::norm(1.0));
    let report = trained(trainer().output(&output).best_by("hits"), 1).unwrap().report;
    // Lower is better, so the first stays the best.
    assert_eq!(report.best_step, Some(4));
    assert!(report.best_valid_scores["hits"] < report.valid_scores["hits"]);
    let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let valid: Vec<_> = lines.filter(|line| line["kind"] == "valid").collect();
    assert_eq!(valid.len(), 3);
    assert_eq!(valid[2]["scores"]["accuracy"].as_f64(), Some(report.valid_scores["accuracy"]));

    let report = trained(trainer().best_by("accuracy"), 1).unwrap().report;
    assert_eq!(report.best_step, Some(12));
    let patient = trained(trainer().best_by("hits").early_stopping(1), 1).unwrap().report;
    assert_eq!((patient.steps, patient.stopped.as_deref()), (8, Some("hits no longer gets better")));
}

/// A score of the program, which the model does not know.
#[test]
fn a_program_adds_a_score_to_those_of_the_model() {
    let missed = |sums: &EvaluationSums| {
        let share = sums.counts.first().map_or(f64::NAN, |right| 1.0 - right / sums.items as f64);
        Score::lower("missed", share)
    };
    let bits = |sums: &EvaluationSums| Score::lower("bits", sums.loss / sums.items as f64 / LN_2);
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        let output = folder.path().join(ranks.to_string());
        let trainer = Trainer::new().over(World::threads(ranks)).with(Zero::stage(0)).output(&output);
        let report = trained(trainer.score(missed).score(bits).best_by("missed"), ranks).unwrap().report;
        let scores = &report.valid_scores;
        assert_eq!(scores["missed"], 1.0 - scores["accuracy"], "{ranks} ranks");
        assert_eq!(scores["bits"], report.valid_loss.unwrap() / LN_2);
        assert_eq!(report.best_step, Some(12), "missed falls as the model learns");
        let values = std::fs::read_to_string(output.join("metrics/valid/epoch-3/missed.log")).unwrap();
        assert_eq!(values.lines().last(), Some(&*format!("{},final", scores["missed"])));
    }
}

#[test]
fn a_score_with_the_name_of_another_is_refused() {
    for name in ["accuracy", "loss"] {
        let twice = move |_: &EvaluationSums| Score::lower(name, 0.0);
        let error = trained(Trainer::new().score(twice), 1).err().unwrap().to_string();
        assert!(error.contains(&format!("are called `{name}`")) && error.contains("another name"), "{error}");
    }
}

/// If higher is better, the best checkpoints are those with the highest score. Evaluations follow steps 4, 8 and 12: a
/// checkpoint of step 6 was never evaluated, so it is not the best, however good the evaluation before it was.
#[test]
fn the_best_checkpoint_stays() {
    let folder = tempfile::tempdir().unwrap();
    for (score, every, kept) in [("accuracy", 4, vec![12]), ("hits", 4, vec![4, 12]), ("hits", 3, vec![12])] {
        let output = folder.path().join(format!("{score}-{every}"));
        let policy = Checkpoints::every(every).keep_last(1).keep_best(1);
        let trainer = Trainer::new().output(&output).checkpoints(policy).best_by(score);
        trained(trainer, 1).unwrap();
        let mut steps: Vec<u64> = std::fs::read_dir(output.join("checkpoints"))
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_prefix("step-")?.parse().ok())
            .collect();
        steps.sort();
        assert_eq!(steps, kept, "{score}, every {every}");
    }
}

#[test]
fn a_score_that_the_model_lacks_is_told_with_those_it_has() {
    let error = trained(Trainer::new().best_by("f1"), 1).err().unwrap().to_string();
    assert_eq!(error, "no score is called `f1`: the best evaluation can be selected by accuracy, hits");
    let data = Data::new(Rows::ragged(8)).valid(Rows::ragged(8));
    let trainer = Trainer::new().best_by("f1");
    let model = Bigram::new(&device().autodiff());
    let error = trainer.fit(model, adamw(), Schedule::constant(0.1), data).err().unwrap().to_string();
    assert!(error.ends_with("by the loss alone, as this model has no scores"), "{error}");
}
