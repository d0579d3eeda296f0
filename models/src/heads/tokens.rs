//! A label for each token.

use burn::tensor::Tensor;
use firebrick::{Evaluation, Loss};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::LabeledBatch;
use firebrick_strategies::Pass;

use crate::ragged::Tokens;
use crate::{TokenScores, smoothed_cross_entropy};

/// The loss of a batch. `logits` computes those of some tokens, `[batch, length, classes]` of their shape.
pub(crate) fn loss(batch: &LabeledBatch, pass: &Pass, logits: impl FnOnce(&Tokens) -> Tensor<3>) -> Loss {
    let tokens = Tokens::of(batch.inputs(), pass);
    match tokens.is_empty() {
        true => Loss::of_nothing(pass),
        false => loss_of(logits(&tokens), batch, &tokens, pass),
    }
}

/// The loss and the counts of the scores.
pub(crate) fn evaluation(
    batch: &LabeledBatch,
    scores: &TokenScores,
    pass: &Pass,
    logits: impl FnOnce(&Tokens) -> Tensor<3>,
) -> Evaluation {
    let tokens = Tokens::of(batch.inputs(), pass);
    if tokens.is_empty() {
        return Evaluation { loss: Loss::of_nothing(pass), counts: scores.counts(&[], &[], 1) };
    }
    let logits = logits(&tokens);
    let length = batch.inputs().shape()[1];
    // Padding has no label, so that its class doesn't count.
    let classes = tokens.put_back(likeliest(logits.clone()), 0);
    let counts = scores.counts(&classes, batch.host_labels(), length);
    Evaluation { loss: loss_of(logits, batch, &tokens, pass), counts }
}

/// The most likely class of each token, row by row, from `[batch, length, classes]`.
fn likeliest(logits: Tensor<3>) -> Vec<i32> {
    logits.argmax(2).into_data().iter().collect()
}

fn loss_of(logits: Tensor<3>, batch: &LabeledBatch, tokens: &Tokens, pass: &Pass) -> Loss {
    let labels = tokens.ints(batch.host_labels(), &logits.device());
    let sum = smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), pass);
    Loss { sum, items: batch.items() }
}
