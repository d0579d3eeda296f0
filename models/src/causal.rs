//! The inputs of a causal language model, and its loss.

use burn::tensor::{Int, Tensor};
use firebrick_datasets::{Batch, TokenBatch};
use firebrick_kernels::{Head, Reads};
use firebrick_strategies::Pass;

use super::attention::{reads_of, starts_of};
use super::output_layer::output_loss;
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

/// The loss of predicting each next token. The last token is only a label and is not an input. `hidden` is the model
/// without its `head`; it returns `[batch, length - 1, width]`.
pub(super) fn next_token_loss(
    batch: TokenBatch,
    pass: &Pass,
    head: &Head,
    hidden: impl FnOnce(Placed, &Pass) -> Tensor<3>,
) -> Loss {
    let [rows, length] = batch.shape();
    let device = pass.device();
    let ids = batch.ids(device).slice([0..rows, 0..length - 1]);
    let labels: Vec<i32> = batch.host_labels().chunks(length).flat_map(|row| &row[1..]).copied().collect();
    let hidden = match batch.position_ids(device) {
        None => hidden(Placed::in_columns(ids), pass),
        Some(places) => {
            let places = places.slice([0..rows, 0..length - 1]);
            let pass = pass.starting_at(starts_of(batch.host_mask(), length));
            hidden(Placed { ids, places, reads: reads_of(&batch) }, &pass)
        }
    };
    Loss { sum: output_loss(hidden, head, &labels, pass), items: batch.items() }
}
