//! Mixed precision in whole runs: dtypes, bytes, the loss scale, and errors.

mod own_models;

use std::sync::{Arc, Mutex};

use crate::support;
use crate::support::*;
use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::datasets::{Batch, Batches, TokenBatch};
use firebrick::optim::ModelOptimizer;
use firebrick::strategies::{Paths, map_params};
use firebrick::{
    Accumulate, Amp, Clip, Data, Keep, Loss, LossScale, Objective, Pass, Report, Schedule, StepNumbers,
    TrainError, Trained, Trainer,
};
use firebrick_models::{Gpt, GptConfig};

const RATE: f64 = 3e-2;

fn device() -> Device {
    support::device().autodiff()
}

/// Trains, and keeps each step's numbers.
fn fit<M>(
    trainer: Trainer<M>,
    model: M,
    optimizer: impl Into<ModelOptimizer>,
    rate: f64,
    data: Data<TokenBatch>,
) -> (Result<Trained<M>, TrainError>, Vec<StepNumbers>)
where
    M: Objective<TokenBatch> + 'static,
{
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let watch = move |step: &StepNumbers| seen.lock().unwrap().push(step.clone());
    let trained = trainer.observe(watch).fit(model, optimizer, Schedule::constant(rate), data);
    let steps = steps.lock().unwrap().clone();
    (trained, steps)
}

/// Trains the small model on rows in micro-batches of `micro`.
fn train(trainer: Trainer<Bigram>, rows: &Rows, micro: usize) -> (Trained<Bigram>, Vec<StepNumbers>) {
    let data = Data::new(rows.clone()).micro_batch(micro);
    let (trained, steps) = fit(trainer, Bigram::new(&device()), adamw(), RATE, data);
    (trained.unwrap(), steps)
}

fn scales(steps: &[StepNumbers]) -> Vec<f64> {
    steps.iter().map(|step| step.loss_scale.unwrap()).collect()
}

fn follows(found: &[StepNumbers], expected: &[StepNumbers], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found.loss - expected.loss).abs() < tolerance * expected.loss, "{found:?} {expected:?}");
        let norm = (found.gradient_norm - expected.gradient_norm).abs();
        assert!(norm < 5.0 * tolerance * expected.gradient_norm, "{found:?} {expected:?}");
    }
}

/// The numbers of the table in the documentation of `Amp`.
#[test]
fn bytes_per_parameter_are_those_of_the_documentation() {
    if !has_bf16() || !is_unpadded() {
        return;
    }
    let rows = Rows::ragged(16);
    let bytes = |amp: Amp| {
        let Report { parameters, master_bytes, replica_bytes, gradient_bytes, optimizer_bytes, .. } =
            train(Trainer::new().with(amp), &rows, 8).0.report;
        let all = [replica_bytes, master_bytes, gradient_bytes, optimizer_bytes];
        assert!(all.iter().all(|bytes| bytes.is_multiple_of(parameters)));
        all.map(|bytes| bytes / parameters)
    };
    assert_eq!(bytes(Amp::bf16()), [2, 4, 2, 8]);
    assert_eq!(bytes(Amp::f16()), [2, 4, 2, 8]);
    assert_eq!(bytes(Amp::pure_bf16()), [0, 2, 2, 4]);
    assert_eq!(bytes(Amp::f32()), [0, 4, 4, 8]);
    let everything = || Keep::path("*");
    assert_eq!(bytes(Amp::bf16().keep_f32(everything())), [0, 4, 4, 8]);
    assert_eq!(bytes(Amp::pure_bf16().keep_f32(everything())), [0, 4, 4, 8]);
}

#[test]
fn f32_changes_no_bit() {
    let rows = Rows::ragged(37);
    let (expected, plain) = train(Trainer::new().epochs(3), &rows, 8);
    let (found, steps) = train(Trainer::new().with(Amp::f32()).epochs(3), &rows, 8);
    assert_eq!(parameters(&found.model), parameters(&expected.model));
    assert_eq!(steps[0].loss, plain[0].loss);
    assert!(steps.iter().all(|step| step.loss_scale.is_none()));
}

#[test]
fn f16_with_a_loss_scale_follows_f32_clipped_or_not() {
    let rows = Rows::ragged(37);
    let (expected, plain) = train(Trainer::new().with(Accumulate(2)).epochs(7), &rows, 8);
    let (found, steps) = train(Trainer::new().with(Amp::f16()).with(Accumulate(2)).epochs(7), &rows, 8);
    // f16 keeps 11 bits. The norm is unscaled, although the scale is 65536.
    follows(&steps, &plain, 2e-3);
    assert_eq!(scales(&steps), vec![65536.0; steps.len()]);
    assert!(difference(&parameters(&found.model), &parameters(&expected.model)) < 1e-2);
    assert_eq!(found.report.loss_scale, Some(65536.0));

    let (expected, plain) = train(Trainer::new().with(Clip::norm(0.2)).epochs(7), &rows, 16);
    let (found, steps) = train(Trainer::new().with(Amp::f16()).with(Clip::norm(0.2)).epochs(7), &rows, 16);
    follows(&steps, &plain, 2e-3);
    assert!(steps.iter().any(|step| step.gradient_norm > 0.2), "the norm is the one before clipping");
    assert!(difference(&parameters(&found.model), &parameters(&expected.model)) < 1e-2);
}

#[test]
fn accumulating_before_and_after_f16_are_the_same_run() {
    let rows = Rows::ragged(37);
    let (after, _) = train(Trainer::new().with(Amp::f16()).with(Accumulate(4)).epochs(3), &rows, 2);
    let (before, _) = train(Trainer::new().with(Accumulate(4)).with(Amp::f16()).epochs(3), &rows, 2);
    assert_eq!(parameters(&after.model), parameters(&before.model));
}

/// A loss far too small for f16.
#[derive(Module, Debug)]
struct Faint {
    inner: Bigram,
    factor: f64,
}

impl Objective<TokenBatch> for Faint {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let Loss { sum, items } = self.inner.loss(batch, pass);
        Loss { sum: sum * self.factor, items }
    }
}

#[test]
fn small_gradients_vanish_in_f16_and_a_loss_scale_saves_them() {
    const FACTOR: f64 = 1e-9;
    let run = |amp: Option<Amp>| {
        let model = Faint { inner: Bigram::new(&device()), factor: FACTOR };
        let data = Data::new(Rows::ragged(32)).micro_batch(8);
        // With plain gradient descent, an update is the gradient times the rate.
        let trainer = Trainer::new().with(amp).epochs(5);
        let (trained, steps) = fit(trainer, model, SgdConfig::new().init(), 0.5 / FACTOR, data);
        (parameters(&trained.unwrap().model), steps)
    };
    let (expected, plain) = run(None);
    let start = parameters(&Bigram::new(&device()));
    assert!(difference(&start, &expected) > 0.1, "f32 learns");

    let (vanished, steps) = run(Some(Amp::f16().scaled_by(LossScale::constant(1.0))));
    assert_eq!(vanished, start, "without a scale every gradient is 0");
    assert!(steps.iter().all(|step| step.gradient_norm == 0.0 && step.skipped.is_none()));

    let (cured, steps) = run(Some(Amp::f16().scaled_by(LossScale::dynamic(2f64.powi(30)))));
    follows(&steps, &plain, 1e-2);
    assert!(difference(&cured, &expected) < 1e-2);
}

/// Three global batches of 16 rows; the second contains a NaN.
fn poisoned() -> Rows {
    let mut rows = Rows::ragged(48).0;
    rows[21] = vec![1, POISON, 3];
    Rows(rows)
}

#[test]
fn a_nan_in_one_micro_batch_skips_its_step_halves_the_scale_and_changes_no_bit() {
    let rows = poisoned();
    for micro_batches in [1, 4] {
        let trainer = || Trainer::new().with(Amp::f16()).with(Accumulate(micro_batches));
        let micro = 16 / micro_batches;
        let (first, _) = train(trainer(), &Rows(rows.0[..16].to_vec()), micro);
        let (skipped, steps) = train(trainer(), &Rows(rows.0[..32].to_vec()), micro);
        assert_eq!(parameters(&skipped.model), parameters(&first.model));
        assert!(steps[1].skipped.is_some() && steps[1].learning_rate == 0.0);

        let (trained, steps) = train(trainer(), &rows, micro);
        assert_eq!(scales(&steps), [65536.0, 65536.0, 32768.0]);
        assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!((trained.report.skipped_steps, trained.report.loss_scale), (1, Some(32768.0)));
        assert_ne!(parameters(&trained.model), parameters(&first.model), "training goes on");

        // Moments and schedule are unchanged too: with a constant scale, the run equals one without that global batch.
        let still = || trainer_with(LossScale::constant(1024.0), micro_batches);
        let without: Vec<_> = rows.0[..16].iter().chain(&rows.0[32..]).cloned().collect();
        let (expected, _) = train(still(), &Rows(without), micro);
        let (found, _) = train(still(), &rows, micro);
        assert_eq!(parameters(&found.model), parameters(&expected.model));
    }
}

fn trainer_with(scale: LossScale, micro_batches: usize) -> Trainer<Bigram> {
    Trainer::new().with(Amp::f16().scaled_by(scale)).with(Accumulate(micro_batches))
}

#[test]
fn a_scale_that_is_too_large_falls_until_gradients_fit() {
    let (trained, steps) = train(trainer_with(LossScale::dynamic(2f64.powi(40)), 2).steps(5), &poisoned(), 4);
    let scales = scales(&steps);
    let skipped = trained.report.skipped_steps as usize;
    assert!(skipped > 3 && steps.len() == 5 + skipped, "{scales:?}");
    assert!(scales.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] / 2.0));
    assert!(*scales.last().unwrap() <= 2f64.powi(40 - skipped as i32));
}

#[test]
fn the_scale_grows_after_as_many_good_steps_as_the_interval() {
    let rows = Rows::ragged(16);
    let scale = LossScale::dynamic(4.0).interval(2);
    let (_, steps) = train(trainer_with(scale, 1).steps(6), &rows, 4);
    assert_eq!(scales(&steps), [4.0, 4.0, 8.0, 8.0, 16.0, 16.0]);
    // A step without supervised items neither moves the weights nor counts.
    let rows = Rows(vec![vec![1, 2, 3], vec![4], vec![5, 6, 7]]);
    let (_, steps) = train(trainer_with(scale, 1).epochs(2), &rows, 1);
    assert_eq!(scales(&steps), [4.0, 4.0, 4.0, 8.0, 8.0, 8.0]);
    assert!(steps[1].skipped.is_some());
}

#[test]
fn an_overflow_at_the_minimum_scale_ends_the_run_with_advice() {
    let data = Data::new(Rows(vec![vec![1, POISON]])).micro_batch(1);
    let trainer = trainer_with(LossScale::dynamic(4.0), 1).steps(9);
    let (result, _) = fit(trainer, Bigram::new(&device()), adamw(), RATE, data);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("minimum loss scale of 1") && error.contains("Amp::bf16()"), "{error}");
}

#[test]
fn pure_bf16_accumulated_and_clipped_trains_in_half_the_bytes() {
    if !has_bf16() {
        return;
    }
    let rows = Rows::ragged(32);
    for (held_in, held) in [(FloatDType::F32, 4), (FloatDType::BF16, 2)] {
        let accumulate = Accumulate(4).held_in(held_in);
        let trainer = Trainer::new().with(Amp::pure_bf16()).with(accumulate).with(Clip::norm(1.0)).epochs(20);
        let (trained, steps) = train(trainer, &rows, 8);
        let Report { parameters, master_bytes, replica_bytes, gradient_bytes, optimizer_bytes, .. } =
            trained.report;
        let bytes = [replica_bytes, master_bytes, gradient_bytes, optimizer_bytes];
        if is_unpadded() {
            assert_eq!(bytes, [0, 2, held, 4].map(|each| each * parameters));
        }
        assert!(
            steps.last().unwrap().loss < 0.9 * steps[0].loss,
            "{} {}",
            steps[0].loss,
            trained.report.train_loss
        );
    }
}

/// What the documentation of `Amp::pure_bf16` states.
#[test]
fn the_price_of_pure_bf16_is_small_updates_and_a_second_moment_that_never_falls() {
    if !has_bf16() {
        return;
    }
    let values: Vec<f32> = (0..128).map(|i| 1.0 + i as f32 / 128.0).collect(); // all of 1 to 2 in bf16
    let weights = || Tensor::<1>::from_data(values.as_slice(), &support::device()).cast(FloatDType::BF16);
    let same = |changed: Tensor<1>| changed.into_data() == weights().into_data();
    let update = 0.99 * 2f64.powi(-9);
    assert!(same(weights() - weights() * update) && same(weights() + weights() * update));
    assert!(same(weights() * 0.999));
    assert!(!same(weights() * 0.99));
}

fn gpt(tied: bool) -> Gpt {
    let config = GptConfig { layers: 2, heads: 2, width: 16, dropout: 0.0, bias: true, tied };
    map_params(config.init(VOCABULARY, 9, &device()), &mut Waves::default())
}

fn train_gpt(amp: Option<Amp>, tied: bool) -> (Trained<Gpt>, Vec<StepNumbers>) {
    let data = Data::new(Rows::ragged(16)).micro_batch(8);
    let (trained, steps) = fit(Trainer::new().with(amp).epochs(4), gpt(tied), adamw(), 1e-3, data);
    (trained.unwrap(), steps)
}

#[test]
fn what_is_kept_in_f32_has_no_replica_and_the_model_casts_at_its_boundary() {
    if !has_bf16() {
        return;
    }
    for tied in [false, true] {
        let model = gpt(tied);
        let (_, plain) = train_gpt(None, tied);
        let elements = |which: &dyn Fn(&str) -> bool| -> usize {
            let paths = Paths::of(&model);
            let places = paths.places().iter().filter(|place| which(&place.path));
            places.map(|place| size(&model, &place.path)).sum()
        };
        let all = elements(&|_| true);
        let head = if tied { "tokens" } else { "head" };
        let norms = elements(&|path| path.contains("norm"));
        let embeddings = elements(&|path| path.starts_with("tokens") || path.starts_with("positions"));
        for (keep, kept) in [
            (Keep::norms(), norms),
            (Keep::embeddings(), embeddings),
            (Keep::head(), elements(&|path| path.starts_with(head))),
            (Keep::path("blocks.1.*norm"), 64),
            (Keep::norms().and(Keep::embeddings()), norms + embeddings),
        ] {
            for amp in [Amp::bf16(), Amp::f16()] {
                let (trained, steps) = train_gpt(Some(amp.keep_f32(keep.clone())), tied);
                assert_eq!(trained.report.replica_bytes, 2 * (all - kept), "{keep:?}");
                assert_eq!(trained.report.master_bytes, 4 * all);
                let near = |a: f64, b: f64, tolerance: f64| (a - b).abs() < tolerance * b;
                assert!(steps.iter().zip(&plain).all(|(step, plain)| near(step.loss, plain.loss, 1e-2)));
                assert!(near(steps[0].gradient_norm, plain[0].gradient_norm, 2e-2), "{keep:?}");
            }
        }
    }
}

/// Returns the number of elements of the parameter at a path.
fn size(model: &Gpt, path: &str) -> usize {
    let paths = Paths::of(model);
    let id = paths.places().iter().find(|place| place.path == path).unwrap().id;
    struct Size(burn::module::ParamId, usize);
    impl burn::module::ModuleVisitor for Size {
        fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
            if param.id == self.0 {
                self.1 = param.base().shape().num_elements();
            }
        }
    }
    let mut size = Size(id, 0);
    model.visit(&mut size);
    size.1
}

#[test]
fn a_path_that_means_nothing_is_refused_with_the_nearest() {
    if !has_bf16() {
        return;
    }
    let amp = Amp::bf16().keep_f32(Keep::path("block.0.norm"));
    let data = Data::new(Rows::ragged(4));
    let error = fit(Trainer::new().with(amp), gpt(true), adamw(), RATE, data).0.unwrap_err().to_string();
    assert!(error.contains("`block.0.norm`") && error.contains("`blocks.0"), "{error}");
}

/// Computes the mean loss of the rows by hand, in the dtype of the model.
fn mean_loss(model: &Bigram, rows: &Rows) -> f64 {
    let batch = rows.batch(0, 0..rows.0.len()).unwrap();
    let items = batch.items();
    let Loss { sum, .. } = model.loss(batch, &Pass::evaluate(&support::device()));
    sum.into_scalar::<f64>() / items as f64
}

#[test]
fn evaluation_reads_the_replica_unless_told_otherwise() {
    if !has_bf16() {
        return;
    }
    let rows = Rows::ragged(37);
    let run = |amp: Option<Amp>| {
        let data = Data::new(rows.clone()).valid(rows.clone()).micro_batch(37);
        let trainer = Trainer::new().with(amp).epochs(3);
        let trained = fit(trainer, Bigram::new(&device()), adamw(), RATE, data).0.unwrap();
        (trained.report.valid_loss.unwrap(), trained.model)
    };
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b;
    let (loss, master) = run(Some(Amp::bf16()));
    assert!(!close(loss, mean_loss(&master, &rows)) && (loss / mean_loss(&master, &rows) - 1.0).abs() < 1e-2);
    let (loss, master) = run(Some(Amp::bf16().evaluate_in(FloatDType::F32)));
    assert!(close(loss, mean_loss(&master, &rows)));
    let (plain, expected) = run(None);
    let (loss, master) = run(Some(Amp::f32().evaluate_in(FloatDType::BF16)));
    assert_eq!(parameters(&master), parameters(&expected), "training is in f32");
    assert!(!close(loss, plain) && (loss / plain - 1.0).abs() < 1e-2, "{loss} {plain}");
    let (loss, master) = run(Some(Amp::pure_bf16().evaluate_in(FloatDType::F32)));
    assert!((loss / mean_loss(&master, &rows) - 1.0).abs() < 1e-2);
}
