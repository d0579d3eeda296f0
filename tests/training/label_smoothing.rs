//! Training smooths labels, and evaluation reports the plain loss.

use crate::support::*;
use burn::tensor::{FloatDType, Int, Tensor, TensorData, activation::log_softmax};
use firebrick::datasets::{Batch, Batches};
use firebrick::{Accumulate, Data, Loss, Objective, Pass, Schedule, TrainError, Trainer};

const SHARE: f64 = 0.2;

fn trainer(share: f64) -> Trainer<firebrick_models::Gpt> {
    Trainer::new().label_smoothing(share).with(Accumulate(2)).steps(1)
}

/// Computes the mean smoothed loss over the supervised tokens of all rows by hand.
fn by_hand(share: f64) -> f64 {
    let model = gpt(0.0, &device());
    let batch = Rows::ragged(8).batch(0, 0..8).unwrap();
    let ([rows, length], items) = (batch.shape(), batch.items());
    let pass = Pass::evaluate(&device());
    let ids: Tensor<2, Int> = batch.ids(&device()).slice([0..rows, 0..length - 1]);
    let likelihoods = log_softmax(model.forward(ids, &pass).cast(FloatDType::F32), 2);
    let likelihoods: Vec<f64> = likelihoods.into_data().iter().collect();
    let labels: TensorData = batch.labels(&device()).slice([0..rows, 1..length]).into_data();
    let labels: Vec<i64> = labels.iter().collect();
    let classes = likelihoods.len() / labels.len();
    let losses = labels.iter().zip(likelihoods.chunks(classes)).filter(|(label, _)| **label >= 0);
    let losses = losses.map(|(label, likelihoods)| {
        let mean = likelihoods.iter().sum::<f64>() / classes as f64;
        -(1.0 - share) * likelihoods[*label as usize] - share * mean
    });
    losses.sum::<f64>() / items as f64
}

#[test]
fn the_first_loss_is_smoothed_and_the_evaluated_one_is_not() {
    for share in [0.0, SHARE] {
        let data = Data::new(Rows::ragged(8)).micro_batch(4).valid(Rows::ragged(8));
        // With a rate of almost 0, both losses are of the same weights.
        let trained = trainer(share)
            .evaluate_every(1)
            .fit(gpt(0.0, &device().autodiff()), adamw(), Schedule::constant(1e-12), data)
            .unwrap();
        let (train, valid) = (trained.report.train_loss, trained.report.valid_loss.unwrap());
        assert!((train - by_hand(share)).abs() < 1e-5, "{train} {}", by_hand(share));
        assert!((valid - by_hand(0.0)).abs() < 1e-5, "{valid}");
    }
    assert!((by_hand(SHARE) - by_hand(0.0)).abs() > 1e-4);
}

#[test]
fn a_loss_that_does_not_smooth_is_refused() {
    let data = || Data::new(Rows::ragged(8)).micro_batch(4);
    let trainer = Trainer::new().label_smoothing(SHARE).steps(1);
    let error = trainer.fit(Bigram::new(&device().autodiff()), adamw(), Schedule::constant(1e-3), data());
    assert!(matches!(error, Err(TrainError::LabelsNotSmoothed)), "{error:?}");
    for share in [-0.1, 1.0, f64::NAN] {
        let trainer = Trainer::new().label_smoothing(share).steps(1);
        let error = trainer.fit(gpt(0.0, &device().autodiff()), adamw(), Schedule::constant(1e-3), data());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`label_smoothing` must be at least 0 and below 1"), "{error}");
    }
}

/// A custom model asks the pass for the smoothing.
#[test]
fn the_pass_tells_the_share_while_it_trains() {
    let pass = Pass::train(&device()).smoothing_labels(SHARE);
    assert!(pass.smooths_in_vain());
    let batch = Rows::ragged(8).batch(0, 0..8).unwrap();
    let Loss { items, .. } = gpt(0.0, &device()).loss(batch.clone(), &pass);
    assert_eq!(items, batch.items());
    assert!(!pass.smooths_in_vain());
    assert_eq!(pass.label_smoothing(), SHARE);
    assert_eq!(pass.evaluating(FloatDType::F32).label_smoothing(), 0.0);
}
