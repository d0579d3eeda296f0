//! Optimizer steps of several micro-batches under the strategies, compared with a hand-written plain loop.

use std::sync::{Arc, Mutex};

use crate::support;
use crate::support::*;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::datasets::{Batch, Batches};
use firebrick::strategies::effects::Sums;
use firebrick::strategies::{Effects, Setup, Stage, Stages, Strategy, StrategyError, StrategyRecipe};
use firebrick::{Accumulate, Amp, Clip, Data, Report, Schedule, StepNumbers, TrainError, Trained, Trainer};

const RATE: f64 = 3e-2;

fn device() -> Device {
    support::device().autodiff()
}

/// Trains with the trainer, one epoch of `rows` unless `trainer` says otherwise.
fn train(trainer: Trainer<Bigram>, rows: Rows, micro: usize) -> (Trained<Bigram>, Vec<StepNumbers>) {
    train_model(trainer, Bigram::new(&device()), rows, micro)
}

fn train_model(
    trainer: Trainer<Bigram>,
    model: Bigram,
    rows: Rows,
    micro: usize,
) -> (Trained<Bigram>, Vec<StepNumbers>) {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let data = Data::new(rows).micro_batch(micro);
    let schedule = Schedule::constant(RATE);
    let trained = trainer
        .observe(move |step: &StepNumbers| {
            seen.lock().unwrap().push(step.clone());
        })
        .fit(model, adamw(), schedule, data);
    let steps = steps.lock().unwrap().clone();
    (trained.unwrap(), steps)
}

/// Runs the plain loop over batches of `size` rows; the last one may be smaller.
fn plain(
    rows: &Rows,
    size: usize,
    epochs: u64,
    change: impl Fn(&Bigram, GradientsParams) -> GradientsParams,
) -> (Vec<f32>, Vec<f64>) {
    let device = device();
    let (mut model, mut optimizer) = (Bigram::new(&device), adamw());
    let mut losses = Vec::new();
    for _ in 0..epochs {
        for start in (0..rows.0.len()).step_by(size) {
            let batch = rows.batch(0, start..(start + size).min(rows.0.len())).unwrap();
            let loss;
            (model, loss) = plain_step(model, &mut optimizer, &batch, RATE, &change, &device);
            losses.push(loss);
        }
    }
    (parameters(&model), losses)
}

fn unchanged(_: &Bigram, grads: GradientsParams) -> GradientsParams {
    grads
}

#[test]
fn no_strategy_is_the_plain_loop_to_the_bit() {
    let rows = Rows::ragged(37);
    let (trained, steps) = train(Trainer::new().epochs(4), rows.clone(), 8);
    let (expected, losses) = plain(&rows, 8, 4, unchanged);
    assert_eq!(parameters(&trained.model), expected);
    assert_eq!(steps.iter().map(|step| step.loss).collect::<Vec<_>>(), losses);
    assert_eq!((trained.report.steps, losses.len()), (20, 20));
}

#[test]
fn identity_settings_change_no_bit() {
    let rows = Rows::ragged(37);
    let (expected, _) = plain(&rows, 8, 4, unchanged);
    let trainer = Trainer::new().with(Accumulate(1)).with(Clip::norm(1e9)).with(None::<Amp>);
    let (trained, _) = train(trainer.epochs(4), rows, 8);
    assert_eq!(parameters(&trained.model), expected);
}

#[test]
fn accumulated_micro_batches_are_one_batch_ragged_and_to_the_last_step() {
    // 37 rows in global batches of 16: two full ones, and one of 2 + 2 + 1 rows.
    let rows = Rows::ragged(37);
    let (expected, losses) = plain(&rows, 16, 7, unchanged);
    let (trained, steps) = train(Trainer::new().with(Accumulate(8)).epochs(7), rows, 2);
    let found = difference(&parameters(&trained.model), &expected);
    assert!(found < 1e-6, "parameters differ by {found:e}");
    assert_eq!(steps.len(), losses.len());
    for (step, loss) in steps.iter().zip(losses) {
        assert!((step.loss - loss).abs() < 1e-6 * loss, "{} {loss}", step.loss);
    }
}

#[test]
fn a_micro_batch_without_a_supervised_token_changes_nothing() {
    // A row of one token predicts nothing, so two such rows are a micro-batch without items.
    let with = vec![vec![1, 2, 3], vec![4, 5], vec![6], vec![7], vec![8, 9, 1], vec![2, 2]];
    let without = Rows(with.iter().filter(|row| row.len() > 1).cloned().collect());
    let (expected, _) = plain(&without, 4, 3, unchanged);
    let (trained, steps) = train(Trainer::new().with(Accumulate(3)).epochs(3), Rows(with), 2);
    let found = difference(&parameters(&trained.model), &expected);
    assert!(found < 1e-6, "parameters differ by {found:e}");
    assert!(steps.iter().all(|step| step.loss.is_finite() && step.skipped.is_none()));
}

#[test]
fn a_step_without_a_supervised_token_is_skipped_and_counted() {
    let rows = vec![vec![1, 2, 3], vec![4, 5], vec![6], vec![7]];
    let (expected, _) = plain(&Rows(rows[..2].to_vec()), 2, 3, unchanged);
    let (trained, steps) = train(Trainer::new().epochs(3), Rows(rows), 2);
    assert_eq!(parameters(&trained.model), expected);
    assert_eq!((trained.report.steps, trained.report.skipped_steps), (3, 3));
    assert!(steps[1].skipped.as_ref().unwrap().contains("no supervised item"));
}

/// Clips by one norm over all parameters, by hand.
fn clip_by_hand(model: &Bigram, mut grads: GradientsParams, max: f64) -> GradientsParams {
    let take2 = |grads: &mut GradientsParams, id| grads.remove::<2>(id).unwrap();
    let take1 = |grads: &mut GradientsParams, id| grads.remove::<1>(id).unwrap();
    let matrices = [model.embedding.weight.id, model.hidden.weight.id, model.head.weight.id];
    let vectors = [&model.hidden, &model.head].map(|linear| linear.bias.as_ref().unwrap().id);
    let matrices = matrices.map(|id| (id, take2(&mut grads, id)));
    let vectors = vectors.map(|id| (id, take1(&mut grads, id)));
    let square = |sum: f64, values: Vec<f64>| sum + values.iter().map(|x| x * x).sum::<f64>();
    let values = |data: burn::tensor::TensorData| data.iter::<f64>().collect::<Vec<_>>();
    let squares = matrices.iter().fold(0.0, |sum, (_, grad)| square(sum, values(grad.clone().into_data())));
    let squares =
        vectors.iter().fold(squares, |sum, (_, grad)| square(sum, values(grad.clone().into_data())));
    let factor = (max / (squares.sqrt() + 1e-6)).min(1.0);
    for (id, grad) in matrices {
        grads.register(id, grad * factor);
    }
    for (id, grad) in vectors {
        grads.register(id, grad * factor);
    }
    grads
}

#[test]
fn one_norm_over_all_parameters_bounds_the_step() {
    let rows = Rows::ragged(37);
    let clip = |model: &Bigram, grads| clip_by_hand(model, grads, 0.2);
    let (expected, _) = plain(&rows, 16, 7, clip);
    let (loose, _) = plain(&rows, 16, 7, unchanged);
    let trainer = Trainer::new().with(Accumulate(8)).with(Clip::norm(0.2)).epochs(7);
    let (trained, steps) = train(trainer, rows, 2);
    let found = difference(&parameters(&trained.model), &expected);
    assert!(found < 5e-6, "parameters differ by {found:e}");
    assert!(difference(&loose, &expected) > 1e-3, "the bound must have had an effect");
    assert!(steps.iter().any(|step| step.gradient_norm > 0.2), "the norm is the one before");
}

#[test]
fn mixed_precision_follows_f32_and_leaves_an_f32_model() {
    if !has_bf16() {
        return;
    }
    // bf16 keeps 8 bits: a gradient is off by up to 2^-8, and AdamW's step by about the same ratio.
    let rows = Rows::ragged(37);
    let (expected, losses) = plain(&rows, 16, 7, unchanged);
    let (trained, steps) = train(Trainer::new().with(Amp::bf16()).with(Accumulate(2)).epochs(7), rows, 8);
    let found = difference(&parameters(&trained.model), &expected);
    assert!(found < 3e-2, "parameters differ by {found:e}");
    assert!(found > 1e-6, "bf16 must have had an effect");
    for (step, loss) in steps.iter().zip(losses) {
        assert!((step.loss - loss).abs() < 1e-2 * loss, "{} {loss}", step.loss);
    }
    let report = &trained.report;
    if is_unpadded() {
        let Report { parameters, master_bytes, replica_bytes, gradient_bytes, optimizer_bytes, .. } = *report;
        let bytes = [master_bytes, replica_bytes, gradient_bytes, optimizer_bytes];
        assert_eq!(bytes, [4, 2, 4, 8].map(|each| each * parameters));
    }
}

#[test]
fn without_a_strategy_replica_and_master_are_the_same_tensors() {
    let (trained, _) = train(Trainer::new().steps(1), Rows::ragged(8), 8);
    let report = trained.report;
    assert_eq!((report.master_bytes, report.replica_bytes), (4 * report.parameters, 0));
}

/// Compares steps, one of which has a poisoned row, with the same steps without it.
fn skips_one(trainer: impl Fn() -> Trainer<Bigram>, micro: usize) {
    let rows = Rows::ragged(48).0;
    let mut poisoned = rows.clone();
    poisoned[21] = vec![1, POISON, 3]; // in the second of three global batches of 16
    let without: Vec<_> = rows[..16].iter().chain(&rows[32..]).cloned().collect();
    let (expected, _) = train(trainer().epochs(1), Rows(without), micro);
    let (found, steps) = train(trainer().epochs(1), Rows(poisoned), micro);
    assert_eq!(parameters(&found.model), parameters(&expected.model));
    assert_eq!((found.report.steps, found.report.skipped_steps), (2, 1));
    assert!(steps[1].skipped.is_some() && steps[1].learning_rate == 0.0);
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 1, 2]);
}

#[test]
fn a_gradient_that_is_not_finite_skips_exactly_its_step() {
    skips_one(Trainer::new, 16);
    skips_one(|| Trainer::new().with(Accumulate(4)), 4);
    skips_one(|| Trainer::new().with(Accumulate(4)).with(Clip::norm(1.0)), 4);
    skips_one(|| Trainer::new().with(Clip::value(0.1)), 16);
}

#[test]
fn so_it_does_in_mixed_precision() {
    if !has_bf16() {
        return;
    }
    skips_one(|| Trainer::new().with(Amp::bf16()), 16);
    skips_one(|| Trainer::new().with(Amp::bf16()).with(Accumulate(4)), 4);
    skips_one(|| Trainer::new().with(Accumulate(4)).with(Amp::bf16()), 4);
    skips_one(|| Trainer::new().with(Amp::bf16()).with(Accumulate(4)).with(Clip::norm(1.0)), 4);
    skips_one(|| Trainer::new().with(Amp::bf16()).with(Clip::value(0.1)), 16);
}

#[test]
fn nothing_but_skips_ends_the_run_with_advice() {
    let error = |amp: Option<Amp>| {
        let data = Data::new(Rows(vec![vec![1, POISON]])).micro_batch(1);
        let trainer = Trainer::new().with(amp).steps(5);
        trainer.fit(Bigram::new(&device()), adamw(), Schedule::constant(RATE), data).unwrap_err().to_string()
    };
    let plain = error(None);
    assert!(plain.starts_with("100 steps in a row were skipped (a gradient was infinite"), "{plain}");
    assert!(plain.contains("lower the learning rate"), "{plain}");
    if has_bf16() {
        assert_eq!(error(Some(Amp::bf16())), plain, "whatever the precision");
    }
}

/// Claims to accumulate, but passes each micro-batch on.
#[derive(Clone, Debug)]
struct Forgetful;

impl StrategyRecipe for Forgetful {
    fn effects(&self) -> Effects {
        let sums = Sums { micro_batches: 2, dtype: FloatDType::F32 };
        Effects { sums: Some(sums), ..Effects::of("Forgetful") }
    }
}

impl<M> Strategy<M> for Forgetful {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(Self))
    }
}

impl<M> Stage<M> for Forgetful {
    fn name(&self) -> &'static str {
        "Forgetful"
    }
}

#[test]
fn gradients_that_would_replace_one_another_are_an_error() {
    let data = Data::new(Rows::ragged(8)).micro_batch(2);
    let trainer = Trainer::new().with(Forgetful).steps(2);
    let error = trainer.fit(Bigram::new(&device()), adamw(), Schedule::constant(RATE), data).unwrap_err();
    assert!(matches!(error, TrainError::NotSummed), "{error}");
    assert!(error.to_string().contains("`.with(Accumulate(1))` before `Clip`"), "{error}");
}

#[test]
fn a_frozen_parameter_stays_bit_for_bit() {
    if !has_bf16() {
        return;
    }
    let mut model = Bigram::new(&device());
    model.hidden = model.hidden.no_grad();
    let before = parameters(&model.hidden);
    let trainer = || Trainer::new().with(Amp::bf16()).with(Accumulate(2)).with(Clip::norm(0.5));
    let (trained, _) = train_model(trainer().epochs(2), model, Rows::ragged(16), 4);
    assert_eq!(parameters(&trained.model.hidden), before);
    assert!(trained.report.gradient_bytes < 4 * trained.report.parameters);
}

#[test]
fn a_list_of_strategies_composes_exactly_as_types_do() {
    if !has_bf16() {
        return;
    }
    use firebrick::strategies::Composed;
    let rows = Rows::ragged(37);
    let list = vec![
        Composed::new().with(Amp::bf16()),
        Composed::new().with(Accumulate(4)),
        Composed::new().with(Clip::norm(0.3)),
    ];
    let types = Composed::new().with(Amp::bf16()).with(Accumulate(4)).with(Clip::norm(0.3));
    let (boxed, _) = train(Trainer::new().with(list).epochs(3), rows.clone(), 4);
    let (typed, _) = train(Trainer::new().with(types).epochs(3), rows, 4);
    assert_eq!(parameters(&boxed.model), parameters(&typed.model));
}

#[test]
fn tied_weights_stay_tied() {
    if !has_bf16() {
        return;
    }
    use burn::nn::{Linear, LinearConfig};
    use firebrick::datasets::TokenBatch;
    use firebrick::{Loss, Objective, Pass};

    /// Two layers that share their weight in Burn's own way: one id at two places.
    #[derive(Module, Debug)]
    struct Twins {
        first: Linear,
        second: Linear,
    }

    impl Objective<TokenBatch> for Twins {
        fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
            let [rows, length] = batch.shape();
            let x = batch.ids(pass.device()).float() * 0.1;
            let x = x.slice([0..rows, 0..1]).repeat_dim(1, 3);
            let x = x.cast(burn::tensor::FloatDType::from(self.first.weight.val().dtype()));
            let y = self.second.forward(self.first.forward(x).tanh());
            let per_row = (y.cast(burn::tensor::FloatDType::F32) - 1.0).square().mean();
            assert!(length > 1);
            Loss { sum: per_row * batch.items() as f64, items: batch.items() }
        }
    }

    let first = LinearConfig::new(3, 3).with_bias(false).init(&device());
    let twins = Twins { second: first.clone(), first };
    let data = Data::new(Rows(vec![vec![1, 2], vec![3, 4], vec![5, 6]])).micro_batch(1);
    let trainer = Trainer::new().with(Amp::bf16()).with(Accumulate(3)).with(Clip::norm(10.0)).epochs(4);
    let before = parameters(&twins.first);
    let trained = trainer.fit(twins, adamw(), Schedule::constant(RATE), data).unwrap();
    let model = trained.model;
    assert_eq!(parameters(&model.first), parameters(&model.second));
    assert_ne!(parameters(&model.first), before);
    assert_eq!(trained.report.parameters, 9);
}

#[test]
fn the_evaluation_loss_does_not_depend_on_the_batch_size() {
    let rows = Rows::ragged(37);
    let loss = |micro| {
        // With a rate of almost 0, the model does not change.
        let data = Data::new(Rows::ragged(4)).valid(rows.clone()).micro_batch(micro);
        let schedule = Schedule::constant(1e-30);
        let trained = Trainer::new().steps(1).fit(Bigram::new(&device()), adamw(), schedule, data).unwrap();
        trained.report.valid_loss.unwrap()
    };
    let whole = loss(37);
    for micro in [1, 2, 5, 36] {
        assert!((loss(micro) - whole).abs() < 1e-6 * whole, "micro-batches of {micro}");
    }
}

#[test]
fn a_wrong_count_or_dtype_of_the_loss_is_told() {
    use firebrick::datasets::TokenBatch;
    use firebrick::{Loss, Objective, Pass};

    #[derive(Module, Debug)]
    struct Wrong {
        inner: Bigram,
        count: usize,
        half: bool,
    }

    impl Objective<TokenBatch> for Wrong {
        fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
            let Loss { sum, items } = self.inner.loss(batch, pass);
            let half: Tensor<1> = sum.clone().cast(burn::tensor::FloatDType::F16);
            let sum = if self.half { half } else { sum };
            Loss { sum, items: items + self.count }
        }
    }

    let message = |count, half| {
        let wrong = Wrong { inner: Bigram::new(&device()), count, half };
        let data = Data::new(Rows::ragged(4));
        let result = Trainer::new().steps(1).fit(wrong, adamw(), Schedule::constant(RATE), data);
        result.unwrap_err().to_string()
    };
    assert!(message(1, false).contains("both must count"), "{}", message(1, false));
    assert!(message(0, true).contains("loss is f16"), "{}", message(0, true));
}
