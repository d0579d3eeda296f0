//! A label for each token.

use burn::tensor::Tensor;
use firebrick::{Evaluation, Loss};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::{Inputs, LabeledBatch};
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

/// The loss and the counts of the scores. At most as many rows are computed at once as there are records, however many
/// rows a long record has.
pub(crate) fn evaluation(
    batch: &LabeledBatch,
    scores: &TokenScores,
    pass: &Pass,
    logits: impl Fn(&Inputs, &Tokens) -> Tensor<3>,
) -> Evaluation {
    let (mut classes, mut sum) = (Vec::with_capacity(batch.host_labels().len()), None);
    for part in batch.parts(rows_at_once(batch, pass)) {
        let tokens = Tokens::of(part.inputs(), pass);
        if tokens.is_empty() {
            classes.resize(classes.len() + part.host_labels().len(), 0);
            continue;
        }
        let logits = logits(part.inputs(), &tokens);
        // Padding has no label, so that its class doesn't count.
        classes.extend(tokens.put_back(likeliest(logits.clone()), 0));
        let loss = loss_of(logits, &part, &tokens, pass).sum;
        sum = Some(match sum {
            Some(sum) => sum + loss,
            None => loss,
        });
    }
    let loss = sum.map_or_else(|| Loss::of_nothing(pass), |sum| Loss { sum, items: batch.items() });
    Evaluation { loss, counts: scores.counts_of_records(&classes, batch) }
}

/// The rows that an evaluation computes at once. Ranks that communicate compute the same number of times.
pub(super) fn rows_at_once(batch: &impl Batch, pass: &Pass) -> usize {
    match batch.records() {
        0 => usize::MAX,
        _ if pass.is_collective() => usize::MAX,
        records => records,
    }
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
