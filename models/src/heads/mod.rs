//! Losses and scores of an encoder's heads, which are the same in all families: a label for each token, a label for each
//! text, and the masked tokens.

#[cfg(test)]
mod tests;

use burn::tensor::{FloatDType, Int, Tensor};
use firebrick::{Evaluation, Loss, Score};
use firebrick_datasets::collators::{Inputs, LabeledBatch, SequenceBatch};
use firebrick_datasets::{Batch, IGNORE};
use firebrick_kernels::{Head, cast};
use firebrick_strategies::Pass;

use crate::ragged::Tokens;
use crate::vocabulary::{counted, output_loss, perplexity};
use crate::{SequenceScores, TokenScores, sequence_loss, smoothed_cross_entropy};

/// The loss of a batch. `logits` computes those of some tokens, `[batch, length, classes]` of their shape.
pub(crate) fn token_loss(
    batch: &LabeledBatch,
    pass: &Pass,
    logits: impl FnOnce(&Tokens) -> Tensor<3>,
) -> Loss {
    let tokens = Tokens::of(batch.inputs(), pass);
    match tokens.is_empty() {
        true => Loss::of_nothing(pass),
        false => loss_of(logits(&tokens), batch, &tokens, pass),
    }
}

/// The loss and the counts of the scores. At most as many rows are computed at once as there are records, however many
/// rows a long record has.
pub(crate) fn token_evaluation(
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
fn rows_at_once(batch: &impl Batch) -> usize {
    match batch.records() {
        0 => usize::MAX,
        records => records,
    }
}

/// Runs the model on each part of a batch that has something to run on.
///
/// Ranks that communicate run the model equally often: a rank with fewer parts runs its last one again, and drops what
/// comes out.
fn in_step<P, T>(
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
fn added(sum: Option<Tensor<1>>, loss: Tensor<1>) -> Tensor<1> {
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

/// The loss of a batch. `logits` computes those of the texts, `[batch, classes]`, from some tokens.
pub(crate) fn text_loss(
    batch: &SequenceBatch,
    pass: &Pass,
    logits: impl FnOnce(&Tokens) -> Tensor<2>,
) -> Loss {
    let tokens = Tokens::of(batch.inputs(), pass);
    match tokens.is_empty() {
        true => Loss::of_nothing(pass),
        false => sequence_loss(logits(&tokens), batch, pass),
    }
}

/// The loss and the counts of the scores. At most as many rows are computed at once as there are records, however many
/// rows a long record has.
pub(crate) fn text_evaluation(
    batch: &SequenceBatch,
    scores: &SequenceScores,
    pass: &Pass,
    logits: impl Fn(&Inputs, &Tokens) -> Tensor<2>,
) -> Evaluation {
    let mut parts = batch.parts(rows_at_once(batch));
    // Rows without a token are read with others that have some.
    if parts.iter().any(|part| Tokens::of(part.inputs(), pass).is_empty()) {
        parts = vec![batch.clone()];
    }
    let is_run = |part: &SequenceBatch| !Tokens::of(part.inputs(), pass).is_empty();
    let computed = in_step(&parts, pass, is_run, |part| {
        let tokens = Tokens::of(part.inputs(), pass);
        let logits = cast(logits(part.inputs(), &tokens), FloatDType::F32);
        let host: Vec<f32> = logits.clone().into_data().iter().collect();
        (host, sequence_loss(logits, part, pass).sum)
    });
    let (mut host, mut sum): (Vec<f32>, _) = (Vec::new(), None);
    for (of_part, loss) in computed.into_iter().flatten() {
        host.extend(of_part);
        sum = Some(added(sum, loss));
    }
    let loss = sum.map_or_else(|| Loss::of_nothing(pass), |sum| Loss { sum, items: batch.items() });
    Evaluation { loss, counts: scores.counts(&host, batch) }
}

/// The loss of a batch. `hidden` computes the input of the head for some tokens, of their shape.
pub(crate) fn masked_loss(
    batch: &LabeledBatch,
    head: &Head,
    pass: &Pass,
    tokens: Tokens,
    hidden: impl FnOnce(&Tokens) -> Tensor<3>,
) -> Loss {
    if tokens.is_empty() {
        return Loss::of_nothing(pass);
    }
    let (x, labels) = (hidden(&tokens), tokens.select(batch.host_labels(), IGNORE));
    Loss { sum: output_loss(x, head, &labels, pass), items: batch.items() }
}

/// The loss and the counts of the [scores](masked_scores).
pub(crate) fn masked_evaluation(
    batch: &LabeledBatch,
    head: &Head,
    pass: &Pass,
    tokens: Tokens,
    hidden: impl FnOnce(&Tokens) -> Tensor<3>,
) -> Evaluation {
    if tokens.is_empty() {
        let Evaluation { loss, counts } = counted(Loss::of_nothing(pass), pass);
        return Evaluation { loss, counts: [counts, vec![0.0]].concat() };
    }
    let x = hidden(&tokens);
    let all = tokens.select(batch.host_labels(), IGNORE);
    let masked = (0..).zip(&all).filter(|(_, label)| **label != IGNORE);
    let (places, labels): (Vec<i32>, Vec<i32>) = masked.unzip();
    let right = match labels.is_empty() {
        // Burn has no product of no rows.
        true => 0,
        false => {
            let places = Tensor::<1, Int>::from_data(places.as_slice(), &x.device());
            let guesses = pass.likeliest(x.clone().flatten::<2>(0, 1).select(0, places), head).into_data();
            guesses.iter::<i32>().zip(labels).filter(|(guess, label)| guess == label).count()
        }
    };
    let loss = Loss { sum: output_loss(x, head, &all, pass), items: batch.items() };
    let Evaluation { loss, mut counts } = counted(loss, pass);
    counts.push(right as f64);
    Evaluation { loss, counts }
}

/// `accuracy` over the masked tokens, and `perplexity`, the exponential of their mean loss.
pub(crate) fn masked_scores(counts: &[f64]) -> Vec<Score> {
    let [loss, items, right] = counts.try_into().unwrap_or([f64::NAN; 3]);
    vec![Score::higher("accuracy", right / items), perplexity(&[loss, items])]
}
