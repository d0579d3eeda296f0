//! Preferences: against trl, under every strategy, and compared with the model that training started from.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Tensor};
use firebrick::datasets::collators::{CausalSample, Dpo, PreferenceBatch, PreferenceSample};
use firebrick::datasets::{Batch, Batches, DataError, Padding, Reference, Side, TokenBatch};
use firebrick::engine::reference::ANSWERS;
use firebrick::strategies::{Composed, Composition};
use firebrick::{
    Accumulate, Adapters, Amp, Checkpoints, Clip, Data, Ema, Lora, Loss, Objective, Offload, Pass, Recompute,
    Report, Resume, Schedule, StepNumbers, TrainError, Trained, Trainer, World, Zero,
};
use firebrick_models::pretrained::Pretrained;
use firebrick_models::{Gpt, Likelihood, Llama, Preferring};
use serde::Deserialize;

use crate::support::golden_models::{folder, gradient_norms};
use crate::support::many::{accumulate, optimizer};
use crate::support::*;

#[derive(Deserialize)]
struct Golden {
    /// Prompt, chosen and rejected answer.
    pairs: Vec<[Vec<u32>; 3]>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    folder: String,
    beta: f64,
    label_smoothing: f64,
    log_probs: Vec<f64>,
    reference: Vec<f32>,
    loss: f64,
    scores: BTreeMap<String, f64>,
    gradient_norms: BTreeMap<String, f64>,
}

fn pair(prompt: &[u32], [chosen, rejected]: [&[u32]; 2]) -> Arc<PreferenceSample> {
    let row = |answer: &[u32]| CausalSample {
        ids: [prompt, answer].concat(),
        prompt: prompt.len(),
        unlearned: Vec::new(),
    };
    Arc::new(PreferenceSample::new(row(chosen), row(rejected)))
}

fn golden<M: Likelihood + Pretrained + 'static>(pairs: &[[Vec<u32>; 3]], case: &Case) {
    let Case { beta, label_smoothing, .. } = *case;
    let folder = folder(&case.folder);
    let config = folder.config().unwrap();
    let device = device().autodiff();
    let model = Preferring::new(folder.load::<M>(&config, &device).unwrap().model);
    let ended = |answer: &[u32]| [answer, &[0]].concat();
    let pairs: Vec<_> = pairs
        .iter()
        .map(|[prompt, chosen, rejected]| pair(prompt, [&ended(chosen), &ended(rejected)]))
        .collect();
    let dpo = Dpo { beta, label_smoothing, reference: Reference::Frozen };
    let slack = if is_cpu() { 1.0 } else { 100.0 };
    let close = |found: f64, expected: f64, what: &str| {
        let apart = (found - expected).abs();
        assert!(apart < slack * 1e-5 * expected.abs().max(1.0), "{what}: {found} {expected}");
    };
    for side in [Side::Right, Side::Left] {
        let what = format!("{}, β {beta}, ε {label_smoothing}, {side:?}", case.folder);
        let mut batch = PreferenceBatch::new(&pairs, dpo, &Padding::default().side(side), 0).unwrap();
        let pass = Pass::evaluate(&device);
        let found: Vec<f64> = model.reference(batch.clone(), &pass).unwrap().into_data().iter().collect();
        assert_eq!(found.len(), case.log_probs.len());
        found.iter().zip(&case.log_probs).for_each(|(found, expected)| close(*found, *expected, &what));

        batch.answered(case.reference.clone());
        let loss = model.loss(batch.clone(), &pass);
        assert_eq!(loss.items, pairs.len());
        close(loss.sum.clone().into_scalar::<f64>(), case.loss, &what);
        let grads = GradientsParams::from_grads(loss.sum.backward(), &model);
        let found = gradient_norms(&model, &config, &grads);
        assert!(found.keys().eq(case.gradient_norms.keys()), "{what}: {:?}", found.keys());
        let largest = case.gradient_norms.values().fold(0f64, |most, norm| most.max(*norm));
        for ((parameter, expected), found) in case.gradient_norms.iter().zip(found.values()) {
            // A key's bias moves all scores of a row alike, so its gradient is 0 except for rounding.
            let apart = (found - expected).abs();
            let text = format!("{what}: gradient of {parameter} {found}, expected {expected}");
            assert!(apart < slack * 1e-5 * expected.max(0.1 * largest), "{text}, the largest {largest}");
        }

        let evaluated = model.evaluate(batch, &pass);
        let scores = model.scores(&evaluated.counts);
        for (ours, theirs) in [
            ("reward_chosen", "rewards/chosen"),
            ("reward_rejected", "rewards/rejected"),
            ("reward_accuracy", "rewards/accuracies"),
            ("reward_margin", "rewards/margins"),
            ("logp_chosen", "logps/chosen"),
            ("logp_rejected", "logps/rejected"),
        ] {
            let found = scores.iter().find(|score| score.name == ours).unwrap().value;
            close(found, case.scores[theirs], &format!("{what}: {ours}"));
        }
    }
}

#[test]
fn losses_gradients_and_rewards_are_those_of_trl() {
    let golden_file: Golden = serde_json::from_str(include_str!("../golden/dpo.json")).unwrap();
    // Kernels take long to compile if a processor emulates the GPU.
    let cases = golden_file.cases.iter().take(if is_cpu() { usize::MAX } else { 1 });
    for case in cases {
        match &*case.folder {
            "llama" => golden::<Llama>(&golden_file.pairs, case),
            _ => golden::<Gpt>(&golden_file.pairs, case),
        }
    }
}

/// The logits of Gemma 2 are bounded, before the head's chunks as in them.
#[test]
fn bounded_logits_have_the_likelihoods_of_all_logits() {
    let folder = folder("gemma2");
    let device = device().autodiff();
    let model = folder.load::<Llama>(&folder.config().unwrap(), &device).unwrap().model;
    let rows = [[3u32, 7, 11, 5, 9, 2], [4, 21, 8, 15, 16, 23]];
    let weights = Tensor::<1>::from_data([0.25f32, -2.0], &device);
    let batch = TokenBatch::from_rows(rows.map(Vec::from).to_vec(), 0).unwrap();
    let pass = Pass::evaluate(&device);
    let ids = batch.ids(&device);
    let (read, labels) = (ids.clone().narrow(1, 0, 5), ids.narrow(1, 1, 5));
    let all = log_softmax(model.forward(read, &pass).cast(FloatDType::F32), 2);
    let all = all.gather(2, labels.unsqueeze_dim(2)).reshape([2, 5]).sum_dim(1).squeeze_dim::<1>(1);
    let found = model.log_probs(&batch, &pass);
    let numbers = |x: &Tensor<1>| x.clone().into_data().iter::<f64>().collect::<Vec<_>>();
    for (found, expected) in numbers(&found).iter().zip(numbers(&all)) {
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
    let norms = |log_probs: Tensor<1>| {
        let grads = (log_probs * weights.clone()).sum().backward();
        let config = folder.config().unwrap();
        gradient_norms(&model, &config, &GradientsParams::from_grads(grads, &model))
    };
    let (found, expected) = (norms(found), norms(all));
    let largest = expected.values().fold(0f64, |most, norm| most.max(*norm));
    assert!(found.keys().eq(expected.keys()) && largest > 0.0);
    for ((parameter, expected), found) in expected.iter().zip(found.values()) {
        assert!((found - expected).abs() < 1e-4 * largest, "{parameter}: {found} {expected}");
    }
}

/// Ragged pairs, in another order in each epoch.
#[derive(Clone)]
struct Pairs {
    pairs: Vec<Arc<PreferenceSample>>,
    dpo: Dpo,
}

impl Pairs {
    fn new(count: usize, dpo: Dpo) -> Self {
        let row = |from: usize, length: usize| -> Vec<u32> {
            (0..length).map(|at| ((from * 7 + at * at * 3 + at) % 10) as u32).collect()
        };
        let pair = |at: usize| {
            let answers = [row(at + 1, 1 + at % 3), row(at + 5, 1 + (at * 5) % 4)];
            pair(&row(at, 1 + at % 4), [&answers[0], &answers[1]])
        };
        Self { pairs: (0..count).map(pair).collect(), dpo }
    }
}

impl Batches for Pairs {
    type Batch = PreferenceBatch;

    fn samples(&self, _: u64) -> usize {
        self.pairs.len()
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<PreferenceBatch, DataError> {
        let of = |position: usize| self.pairs[(position + epoch as usize * 5) % self.pairs.len()].clone();
        PreferenceBatch::new(&positions.map(of).collect::<Vec<_>>(), self.dpo, &Padding::default(), 0)
    }
}

fn model(dropout: f64) -> Preferring<Gpt> {
    Preferring::new(gpt(dropout, &device().autodiff()))
}

fn data(dpo: Dpo, micro: usize) -> Data<PreferenceBatch> {
    let pairs = Pairs::new(13, dpo);
    Data::new(pairs.clone()).valid(pairs).micro_batch(micro)
}

/// What a run comes to.
struct Outcome {
    losses: Vec<f64>,
    parameters: Vec<f32>,
    report: Report,
}

fn fit(
    trainer: Trainer<Preferring<Gpt>>,
    model: Preferring<Gpt>,
    data: Data<PreferenceBatch>,
) -> Result<Outcome, TrainError> {
    let (sender, losses) = std::sync::mpsc::channel();
    let trainer = trainer.seed(11).observe(move |step: &StepNumbers| sender.send(step.loss).unwrap());
    let trained: Trained<_> = trainer.fit(model, optimizer(), Schedule::constant(5e-3), data)?;
    let parameters = parameters(&trained.model);
    Ok(Outcome { losses: losses.into_iter().collect(), parameters, report: trained.report })
}

/// Runs on this many ranks, with each rank's part of a global batch of 8 pairs cut into this many micro-batches.
fn run<S: Composition<Preferring<Gpt>>>(ranks: usize, micro_batches: usize, strategies: S) -> Outcome {
    let steps = if is_cpu() { 7 } else { 2 };
    let trainer =
        Trainer::new().over(World::threads(ranks)).with(strategies).steps(steps).evaluate_every(steps);
    let dpo = Dpo { beta: 0.5, label_smoothing: 0.1, ..Dpo::default() };
    let outcome = fit(trainer, model(0.1), data(dpo, 8 / ranks / micro_batches));
    outcome.unwrap_or_else(|error| panic!("{ranks} ranks, {micro_batches} micro-batches: {error}"))
}

#[test]
fn it_starts_at_ln_2_and_margins_grow() {
    let dpo = Dpo { beta: 1.0, ..Dpo::default() };
    let trainer = Trainer::new().steps(25).evaluate_every(25);
    let outcome = fit(trainer, model(0.0), data(dpo, 13)).unwrap();
    assert!((outcome.losses[0] - 2f64.ln()).abs() < 1e-6, "{:?}", outcome.losses);
    let scores = &outcome.report.valid_scores;
    assert!(scores["reward_margin"] > 1.0 && scores["reward_accuracy"] > 0.9, "{scores:?}");
    let apart = scores["reward_chosen"] - scores["reward_rejected"] - scores["reward_margin"];
    assert!(apart.abs() < 1e-9 && outcome.report.valid_loss.unwrap() < 0.5, "{scores:?}");
}

#[test]
fn a_run_is_the_same_on_any_ranks_with_any_cut_and_every_strategy() {
    let alone = run(1, 1, None::<Clip>);
    let same = |found: Outcome, what: &str| {
        let losses = found.losses.iter().zip(&alone.losses);
        let apart = losses.map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
        let weights = difference(&found.parameters, &alone.parameters);
        // f32 sums in another order; a reference that another batch computed is among them.
        assert!(apart < 5e-6 && weights < 5e-6, "{what}: {apart:e} {weights:e}");
        for (name, score) in &alone.report.valid_scores {
            let apart = (found.report.valid_scores[name] - score).abs();
            assert!(apart < 5e-5, "{what}: {name} {apart:e}");
        }
    };
    same(run(1, 4, Accumulate(4)), "four micro-batches");
    same(run(1, 1, Recompute::every_block()), "recomputed");
    same(run(1, 1, Offload::optimizer()), "offloaded");
    same(run(1, 1, Offload::parameters().on(std::env::temp_dir())), "on a disk");
    for stage in 1..=3 {
        same(run(2, 1, Zero::stage(stage)), &format!("two ranks, stage {stage}"));
    }
    // The last global batch of an epoch has 5 pairs, so that a rank lacks a micro-batch.
    same(run(4, 2, Composed::new().with(Zero::stage(3)).with(accumulate(2))), "four ranks, stage 3");
}

#[test]
fn in_mixed_precision_it_starts_at_ln_2_too() {
    if !has_bf16() {
        return;
    }
    let trainer = Trainer::new().with(Amp::bf16()).with(Ema::new(0.9)).steps(2);
    let outcome = fit(trainer, model(0.0), data(Dpo { beta: 1.0, ..Dpo::default() }, 13)).unwrap();
    assert!((outcome.losses[0] - 2f64.ln()).abs() < 1e-6, "{:?}", outcome.losses);
}

/// A run that goes on compares with the weights that it began with, although another model is given.
#[test]
fn a_resumed_run_keeps_its_reference() {
    let output = tempfile::tempdir().unwrap();
    let dpo = Dpo { beta: 1.0, ..Dpo::default() };
    let trainer = |folder: &Path| {
        Trainer::new().steps(8).output(folder).checkpoints(Checkpoints::every(1).keep_every(1))
    };
    let whole = output.path().join("whole");
    let expected = fit(trainer(&whole), model(0.0), data(dpo, 4)).unwrap();
    assert!(whole.join(ANSWERS).is_file());
    let resumed = |given, from: &Path, into: &str| {
        let into = output.path().join(into);
        fit(trainer(&into).resume(Resume::Path(from.to_path_buf())), given, data(dpo, 4)).unwrap()
    };
    let from = whole.join("checkpoints/step-00000003");
    let others = || map_waves(model(0.0));
    let found = resumed(others(), &from, "others");
    assert!(found.parameters == expected.parameters && found.losses == expected.losses[3..]);
    assert!(output.path().join("others").join(ANSWERS).is_file(), "it can go on from there, too");
    // Without the file, the model that is given answers again.
    fs::remove_file(whole.join(ANSWERS)).unwrap();
    let found = resumed(model(0.0), &from, "same");
    assert!(difference(&found.parameters, &expected.parameters) < 1e-6);
    let found = resumed(others(), &from, "wrong");
    assert!(
        difference(&found.parameters, &expected.parameters) > 1e-4,
        "other weights are another reference"
    );
}

#[test]
fn adapters_can_be_off_in_the_reference() {
    let dpo = |reference| Dpo { beta: 1.0, reference, ..Dpo::default() };
    let lora = || Lora::rank(2).alpha(8.0);
    let train = |reference, from: Option<&Adapters>| {
        let trainer = Trainer::new().with(lora()).steps(6);
        let trainer = match from {
            Some(adapters) => trainer.starting_from(adapters),
            None => trainer,
        };
        trainer.seed(11).evaluate_every(6).fit(
            model(0.0),
            optimizer(),
            Schedule::constant(1e-2),
            data(dpo(reference), 13),
        )
    };
    // New adapters change nothing, so both are the model that is given.
    let frozen = train(Reference::Frozen, None).unwrap();
    let off = train(Reference::AdapterOff, None).unwrap();
    assert!(parameters(&frozen.model) == parameters(&off.model));
    let adapters = frozen.adapters.unwrap();

    let first = |reference| {
        let trainer = Trainer::new().with(lora()).starting_from(&adapters).steps(1);
        fit(trainer, model(0.0), data(dpo(reference), 13)).unwrap().losses[0]
    };
    assert!((first(Reference::Frozen) - 2f64.ln()).abs() < 1e-6);
    // With the adapters off in the reference, training goes on from the loss that the first run ended with.
    let ended = frozen.report.valid_loss.unwrap();
    let found = first(Reference::AdapterOff);
    assert!((found - ended).abs() < 1e-5 && ended < 0.65, "{found} {ended}");

    let without = fit(Trainer::new().steps(1), model(0.0), data(dpo(Reference::AdapterOff), 13));
    let error = without.err().unwrap();
    assert!(matches!(error, TrainError::NoAdapter), "{error}");
}

/// A model of a user who forgot a method.
#[derive(Module, Debug)]
struct Silent {
    bigram: Bigram,
}

impl Objective<PreferenceBatch> for Silent {
    fn loss(&self, batch: PreferenceBatch, pass: &Pass) -> Loss {
        let rows = batch.rows();
        let (losses, mask) = self.bigram.losses(rows.ids(pass.device()), rows.labels(pass.device()));
        Loss { sum: (losses * mask).sum(), items: batch.items() }
    }
}

#[test]
fn a_model_without_answers_is_refused() {
    let model = Silent { bigram: Bigram::new(&device().autodiff()) };
    let fit = Trainer::new().steps(1).fit(model, adamw(), Schedule::constant(1e-3), data(Dpo::default(), 2));
    let error = fit.err().unwrap();
    assert!(matches!(error, TrainError::NoReference), "{error}");
}
