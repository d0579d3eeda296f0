//! A label for each text.

use burn::tensor::{FloatDType, Tensor};
use firebrick::{Evaluation, Loss};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::{Inputs, SequenceBatch};
use firebrick_kernels::cast;
use firebrick_strategies::Pass;

use super::tokens::{added, in_step, rows_at_once};
use crate::ragged::Tokens;
use crate::{SequenceScores, sequence_loss};

/// The loss of a batch. `logits` computes those of the texts, `[batch, classes]`, from some tokens.
pub(crate) fn loss(batch: &SequenceBatch, pass: &Pass, logits: impl FnOnce(&Tokens) -> Tensor<2>) -> Loss {
    let tokens = Tokens::of(batch.inputs(), pass);
    match tokens.is_empty() {
        true => Loss::of_nothing(pass),
        false => sequence_loss(logits(&tokens), batch, pass),
    }
}

/// The loss and the counts of the scores. At most as many rows are computed at once as there are records, however many
/// rows a long record has.
pub(crate) fn evaluation(
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
