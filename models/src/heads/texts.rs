//! A label for each text.

use burn::tensor::{FloatDType, Tensor};
use firebrick::{Evaluation, Loss};
use firebrick_datasets::collators::SequenceBatch;
use firebrick_kernels::cast;
use firebrick_strategies::Pass;

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

/// The loss and the counts of the scores.
pub(crate) fn evaluation(
    batch: &SequenceBatch,
    scores: &SequenceScores,
    pass: &Pass,
    logits: impl FnOnce(&Tokens) -> Tensor<2>,
) -> Evaluation {
    let tokens = Tokens::of(batch.inputs(), pass);
    if tokens.is_empty() {
        return Evaluation { loss: Loss::of_nothing(pass), counts: scores.counts(&[], batch) };
    }
    let logits = cast(logits(&tokens), FloatDType::F32);
    let host: Vec<f32> = logits.clone().into_data().iter().collect();
    let counts = scores.counts(&host, batch);
    Evaluation { loss: sequence_loss(logits, batch, pass), counts }
}
