//! The loss of a model of whole texts.

use burn::tensor::{FloatDType, Tensor, activation::log_sigmoid};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::SequenceBatch;
use firebrick_kernels::cast;
use firebrick_strategies::Pass;

use super::smoothed_cross_entropy;
use firebrick::Loss;

/// The loss summed over the items of a batch, f32: the negative log-likelihood if each row has one class; the binary
/// cross-entropy of each class if a row has several; the squared error for numbers. With one class per row, labels
/// are [smoothed](Pass::label_smoothing).
///
/// `logits` is `[rows, classes]` in any float dtype and is cast to f32 first.
///
/// # Panics
///
/// If a class of the batch is not below the number of logits, or numbers meet more than one logit.
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
