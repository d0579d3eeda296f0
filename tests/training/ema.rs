//! Compares averaged weights with an average computed by hand over a plain loop.

use crate::support::*;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::DType;
use firebrick::datasets::Batches;
use firebrick::{Accumulate, Amp, Clip, Data, Ema, Loss, LossScale, Objective, Pass};
use firebrick::{Schedule, Trained, Trainer};

/// Rows of a global batch.
const GLOBAL: usize = 4;
const UPDATES: usize = 12;
const DECAY: f64 = 0.6;
const RATE: f64 = 1e-2;

/// The rows of a run with some poisoned global batches.
fn rows(poisoned: &[usize]) -> Rows {
    let mut rows = Rows::ragged((UPDATES + poisoned.len()) * GLOBAL);
    poisoned.iter().for_each(|batch| rows.0[batch * GLOBAL + 1].push(POISON));
    rows
}

fn train(trainer: Trainer<Bigram>, poisoned: &[usize], micro: usize) -> Trained<Bigram> {
    let data = Data::new(rows(poisoned)).micro_batch(micro).valid(Rows::ragged(7));
    let trainer = trainer.steps(UPDATES as u64).evaluate_every(UPDATES as u64);
    trainer.fit(Bigram::new(&device().autodiff()), adamw(), Schedule::constant(RATE), data).unwrap()
}

/// Returns the parameters before the first update of a plain loop, and after each. Leaves out poisoned global batches.
fn by_hand(poisoned: &[usize]) -> Vec<Vec<f32>> {
    let device = device().autodiff();
    let (mut model, mut optimizer) = (Bigram::new(&device), adamw());
    let mut found = vec![parameters(&model)];
    for number in (0..UPDATES + poisoned.len()).filter(|number| !poisoned.contains(number)) {
        let batch = rows(poisoned).batch(0, number * GLOBAL..(number + 1) * GLOBAL).unwrap();
        model = plain_step(model, &mut optimizer, &batch, RATE, |_, grads| grads, &device).0;
        found.push(parameters(&model));
    }
    found
}

/// Averages them in f64, with or without warmup.
fn average(weights: &[Vec<f32>], warmup: bool) -> Vec<f32> {
    let mut average: Vec<f64> = weights[0].iter().map(|x| f64::from(*x)).collect();
    for (t, weights) in weights[1..].iter().enumerate() {
        let t = t as f64;
        let decay = if warmup { DECAY.min((1.0 + t) / (10.0 + t)) } else { DECAY };
        for (average, weight) in average.iter_mut().zip(weights) {
            *average = decay * *average + (1.0 - decay) * f64::from(*weight);
        }
    }
    average.into_iter().map(|x| x as f32).collect()
}

fn averaged(trained: Trained<Bigram>) -> Vec<f32> {
    parameters(&trained.averaged.unwrap())
}

/// Returns the validation loss, in f32.
fn valid_loss(model: &Bigram) -> f64 {
    let batch = Rows::ragged(7).batch(0, 0..7).unwrap();
    let Loss { sum, items } = model.loss(batch, &Pass::evaluate(&device()));
    sum.into_scalar::<f64>() / items as f64
}

#[test]
fn it_is_the_average_of_all_updates_and_changes_none() {
    let weights = by_hand(&[]);
    let plain = train(Trainer::new(), &[], GLOBAL);
    assert!(plain.averaged.is_none());
    for (ema, warmup) in [(Ema::new(DECAY), true), (Ema::new(DECAY).without_warmup(), false)] {
        let trained = train(Trainer::new().with(ema), &[], GLOBAL);
        assert!(parameters(&trained.model) == parameters(&plain.model), "what is trained is the same");
        let averaged = averaged(trained);
        assert!(difference(&averaged, &average(&weights, warmup)) < 1e-6);
        assert!(difference(&averaged, &parameters(&plain.model)) > 1e-3, "and the average is another");
    }
}

#[test]
fn it_may_stand_anywhere_and_skipped_steps_leave_it_alone() {
    let poisoned = [0, 3, 4];
    let expected = average(&by_hand(&poisoned), true);
    let ema = || Ema::new(DECAY);
    // Loss scaling skips a NaN; this scale changes no bit.
    let amp = || Amp::f32().scaled_by(LossScale::constant(8.0));
    for trained in [
        train(Trainer::new().with(ema()).with(amp()).with(Accumulate(2)), &poisoned, GLOBAL / 2),
        train(Trainer::new().with(amp()).with(ema()).with(Accumulate(2)), &poisoned, GLOBAL / 2),
        train(Trainer::new().with(amp()).with(Accumulate(2)).with(ema()), &poisoned, GLOBAL / 2),
        train(Trainer::new().with(amp()).with(Clip::norm(1e9)).with(ema()), &poisoned, GLOBAL),
    ] {
        assert_eq!(trained.report.skipped_steps, 3);
        assert!(difference(&averaged(trained), &expected) < 1e-5);
    }
}

#[test]
fn the_average_is_what_is_evaluated_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let trained = train(Trainer::new().with(Ema::new(DECAY)).output(&output), &[], GLOBAL);
    let [of_average, of_master] = [trained.averaged.as_ref().unwrap(), &trained.model].map(valid_loss);
    let reported = trained.report.valid_loss.unwrap();
    assert!((reported - of_average).abs() < 1e-5, "{reported} {of_average}");
    assert!((reported - of_master).abs() > 1e-4, "{reported} {of_master}");
    let saved = |name: &str| {
        let mut model = Bigram::new(&device());
        model.load_from(&mut SafetensorsStore::from_file(output.join(name))).unwrap();
        parameters(&model)
    };
    let average = parameters(trained.averaged.as_ref().unwrap());
    assert!(saved("best.safetensors") == average);
    assert!(saved("ema.safetensors") == average);
    assert!(saved("model.safetensors") == parameters(&trained.model));
}

#[test]
fn under_mixed_precision_it_is_of_the_f32_master_and_evaluated_in_half() {
    if !has_bf16() {
        return;
    }
    let plain = train(Trainer::new().with(Amp::bf16()), &[], GLOBAL);
    let after = train(Trainer::new().with(Amp::bf16()).with(Ema::new(DECAY)), &[], GLOBAL);
    let before = train(Trainer::new().with(Ema::new(DECAY)).with(Amp::bf16()), &[], GLOBAL);
    let average = after.averaged.as_ref().unwrap();
    assert_eq!(average.hidden.weight.val().dtype(), DType::F32);
    assert!(parameters(&after.model) == parameters(&plain.model));
    let (in_half, in_f32) = (after.report.valid_loss.unwrap(), valid_loss(average));
    assert!((1e-7..1e-2).contains(&(in_half - in_f32).abs()), "{in_half} {in_f32}");
    assert!(averaged(after) == averaged(before));
}
