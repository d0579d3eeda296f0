//! The inputs of a causal language model, and its loss.

use burn::tensor::{Int, Tensor};
use firebrick_datasets::{Batch, TokenBatch};
use firebrick_kernels::Reads;
use firebrick_strategies::Pass;

use super::attention::{reads_of, starts_of};
use super::smoothed_cross_entropy;
use firebrick::Loss;

/// Tokens with their positions, and what they read.
pub(crate) struct Placed {
    /// `[batch, length]`.
    pub ids: Tensor<2, Int>,
    /// The position of each token in its sample, from 0: `[batch, length]`, or `[1, length]` for all rows alike.
    pub places: Tensor<2, Int>,
    /// What each position reads.
    pub reads: Reads,
}

impl Placed {
    /// Rows that hold one sample each, starting in column 0.
    pub fn in_columns(ids: Tensor<2, Int>) -> Self {
        let ([_, length], device) = (ids.dims(), ids.device());
        let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze();
        Self { ids, places, reads: Reads::causal(length) }
    }
}

/// The loss of predicting each next token. The last token is only a label and is not an input. `logits` is the model;
/// it returns `[batch, length - 1, vocabulary]`.
pub(super) fn next_token_loss(
    batch: TokenBatch,
    pass: &Pass,
    logits: impl FnOnce(Placed, &Pass) -> Tensor<3>,
) -> Loss {
    let [rows, length] = batch.shape();
    let device = pass.device();
    let ids = batch.ids(device).slice([0..rows, 0..length - 1]);
    let labels = batch.labels(device).slice([0..rows, 1..length]);
    let logits = match batch.position_ids(device) {
        None => logits(Placed::in_columns(ids), pass),
        Some(places) => {
            let places = places.slice([0..rows, 0..length - 1]);
            let pass = pass.starting_at(starts_of(batch.host_mask(), length));
            logits(Placed { ids, places, reads: reads_of(&batch) }, &pass)
        }
    };
    let sum = smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), pass);
    Loss { sum, items: batch.items() }
}
