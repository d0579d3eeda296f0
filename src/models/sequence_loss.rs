//! The loss of a model that reads a text as a whole.

use burn::tensor::{FloatDType, Tensor, activation::log_sigmoid};
use firebrick_datasets::{Batch, SequenceBatch};
use firebrick_strategies::{Pass, cast};

use super::smoothed_cross_entropy;
use crate::Loss;

/// The sum over the items of a batch, f32: with a class for each row the negative log-likelihood of the class;
/// with several classes the binary cross-entropy of each; with numbers the squared error. Labels are
/// [smoothed](Pass::label_smoothing) where each row has one class.
///
/// `logits` is `[rows, classes]` in any float dtype and is widened first.
///
/// # Panics
///
/// Where a class of the batch is not below the number of logits, or numbers meet more than one logit.
pub fn sequence_loss(logits: Tensor<2>, batch: &SequenceBatch, pass: &Pass) -> Loss {
    let (device, items) = (logits.device(), batch.items());
    let logits = cast(logits, FloatDType::F32);
    let sum = if let Some(classes) = batch.classes(&device) {
        smoothed_cross_entropy(logits, classes, pass)
    } else if let Some(flags) = batch.multi_hot(&device) {
        let off = log_sigmoid(logits.clone().neg());
        (flags.clone() * log_sigmoid(logits) + (flags.neg() + 1.0) * off).sum().neg()
    } else if let Some(numbers) = batch.numbers(&device) {
        assert_eq!(logits.dims()[1], 1, "a number is predicted by one logit: num_labels must be 1");
        (logits.squeeze_dim::<1>(1) - numbers).square().sum()
    } else {
        logits.sum() * 0.0
    };
    Loss { sum, items }
}
