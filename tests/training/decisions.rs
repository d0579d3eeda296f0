//! Updates that a device decides about, compared with those of a run that waits for each decision.

use std::sync::{Arc, Mutex};

use crate::support::resuming::{saved, sums};
use crate::support::*;
use burn::module::Module;
use firebrick::strategies::optim::{Adagrad, AdamW, Lion, ModelOptimizer, Sgd};
use firebrick::strategies::{
    Effects, Grads, Outcome, Setup, Stage, Stages, Strategy, StrategyError, StrategyRecipe,
};
use firebrick::{Accumulate, Amp, Checkpoints, Clip, Data, Ema, LossScale, Schedule, StepNumbers, Trainer};

/// Changes nothing, but may read the norm of each step.
#[derive(Clone, Copy, Debug)]
struct Waits(bool);

impl StrategyRecipe for Waits {
    fn effects(&self) -> Effects {
        Effects::of("Waits")
    }
}

impl<M: Module> Strategy<M> for Waits {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(*self))
    }
}

impl<M: Module> Stage<M> for Waits {
    fn name(&self) -> &'static str {
        "Waits"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        if self.0 {
            grads.read_norm(master)?;
        }
        Ok(Outcome::Apply(grads))
    }
}

/// What a run leaves: the numbers of its steps, the sums of the files of each checkpoint, and the parameters.
type Trace = (Vec<StepNumbers>, Vec<Vec<(String, String)>>, Vec<f32>);

/// Trains on global batches of two rows, some of which are poisoned: the first, two in a row, one before an evaluation
/// and a save, and the last.
fn run(optimizer: ModelOptimizer, trainer: Trainer<Bigram>, waits: bool) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let mut rows = Rows::ragged(32);
    for batch in [0, 3, 4, 6, 15] {
        rows.0[2 * batch + 1].push(POISON);
    }
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let watch = move |numbers: &StepNumbers| {
        let measured = StepNumbers { seconds: 0.0, tokens_per_second: 0.0, ..numbers.clone() };
        let device = StepNumbers {
            memory_bytes: 0,
            activation_bytes: 0,
            optimizer_bytes: 0,
            peak_bytes: 0,
            ..measured
        };
        seen.lock().unwrap().push(device);
    };
    let trainer = trainer.with(Waits(waits)).epochs(1).evaluate_every(4);
    let trainer = trainer.output(&output).checkpoints(Checkpoints::every(2).keep_every(1)).observe(watch);
    let data = Data::new(rows).micro_batch(1).valid(Rows::ragged(3));
    let model = Bigram::new(&device().autodiff());
    let trained = trainer.fit(model, optimizer, Schedule::cosine(1e-2), data).unwrap();
    // A loss scale that is too large skips some more.
    let updates = trained.report.steps;
    assert!(trained.report.skipped_steps >= 5 && updates > 4, "{updates}");
    let checkpoints = (2..=updates).step_by(2).map(|step| sums(&saved(&output, step))).collect();
    let steps = steps.lock().unwrap().clone();
    (steps, checkpoints, parameters(&trained.model))
}

fn same(optimizer: impl Fn() -> ModelOptimizer, trainer: impl Fn() -> Trainer<Bigram>, what: &str) {
    let (steps, saves, weights) = run(optimizer(), trainer(), false);
    let (expected_steps, expected_saves, expected) = run(optimizer(), trainer(), true);
    for (step, expected) in steps.iter().zip(&expected_steps) {
        // A NaN is unlike itself.
        assert_eq!(format!("{step:?}"), format!("{expected:?}"), "{what}");
    }
    assert_eq!(steps.len(), expected_steps.len(), "{what}");
    assert_eq!(saves, expected_saves, "{what}");
    assert_eq!(weights, expected, "{what}");
}

#[test]
fn a_run_whose_device_decides_is_that_of_one_that_waits() {
    let adamw = || AdamW::new().weight_decay(0.1).init().unwrap();
    let accumulated = || Trainer::new().with(Accumulate(2));
    same(adamw, accumulated, "accumulated");
    same(adamw, || accumulated().with(Clip::norm(0.5)), "clipped");
    same(adamw, || accumulated().with(Ema::new(0.9)), "averaged");
    let scaled = || Amp::f16().scaled_by(LossScale::constant(64.0));
    same(adamw, || Trainer::new().with(scaled()).with(Accumulate(2)), "f16 with a constant scale");
    let moving = || Amp::f16().scaled_by(LossScale::dynamic(2f64.powi(24)).interval(2));
    same(
        adamw,
        || Trainer::new().with(moving()).with(Accumulate(2)),
        "f16 with a scale that falls and grows",
    );
    same(|| Lion::new().init().unwrap(), accumulated, "Lion");
    same(|| Sgd::new().momentum(0.9).init().unwrap(), accumulated, "momentum");
    same(|| Adagrad::new().init().unwrap(), accumulated, "Adagrad");
    // Burn's own optimizer cannot be left to the device.
    same(|| crate::support::adamw().into(), accumulated, "Burn's AdamW");
}
