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
    let parts = batch.parts(rows_at_once(batch)).into_iter();
    let parts: Vec<_> = parts.map(|part| (Tokens::of(part.inputs(), pass), part)).collect();
    let is_run = |(tokens, _): &(Tokens, LabeledBatch)| !tokens.is_empty();
    let computed = in_step(&parts, pass, is_run, |(tokens, part)| {
        let logits = logits(part.inputs(), tokens);
        // Padding has no label, so that its class doesn't count.
        let classes = tokens.put_back(likeliest(logits.clone()), 0);
        (classes, loss_of(logits, part, tokens, pass).sum)
    });
    let (mut classes, mut sum) = (Vec::with_capacity(batch.host_labels().len()), None);
    for ((_, part), computed) in parts.iter().zip(computed) {
        match computed {
            Some((of_part, loss)) => {
                classes.extend(of_part);
                sum = Some(added(sum, loss));
            }
            None => classes.resize(classes.len() + part.host_labels().len(), 0),
        }
    }
    let loss = sum.map_or_else(|| Loss::of_nothing(pass), |sum| Loss { sum, items: batch.items() });
    Evaluation { loss, counts: scores.counts_of_records(&classes, batch) }
}

/// The rows that an evaluation computes at once.
pub(super) fn rows_at_once(batch: &impl Batch) -> usize {
    match batch.records() {
        0 => usize::MAX,
        records => records,
    }
}

/// Runs the model on each part of a batch that has something to run on.
///
/// Ranks that communicate run the model equally often: a rank with fewer parts runs its last one again, and drops what
/// comes out.
pub(super) fn in_step<P, T>(
    parts: &[P],
    pass: &Pass,
    is_run: impl Fn(&P) -> bool,
    run: impl Fn(&P) -> T,
) -> Vec<Option<T>> {
    let own = parts.iter().filter(|part| is_run(part)).count();
    let rounds = pass.largest_of_ranks(own);
    let computed = parts.iter().map(|part| is_run(part).then(|| run(part))).collect();
    if let Some(last) = parts.iter().rfind(|part| is_run(part)) {
        (own..rounds).for_each(|_| drop(run(last)));
    }
    computed
}

/// Adds the loss of a part to those before it.
pub(super) fn added(sum: Option<Tensor<1>>, loss: Tensor<1>) -> Tensor<1> {
    match sum {
        Some(sum) => sum + loss,
        None => loss,
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
