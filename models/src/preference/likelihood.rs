//! The log-probabilities of answers.

use burn::module::Module;
use burn::tensor::{DType, Int, Tensor, TensorData};
use firebrick_datasets::{IGNORE, TokenBatch};
use firebrick_kernels::{Head, head_losses};
use firebrick_strategies::Pass;

use crate::causal::{PlacedTokens, Read};
use crate::{Gpt, Llama};

/// A causal language model that computes how likely texts are.
pub trait Likelihood: Module {
    /// Returns the natural logarithm of the probability of each row's labels, summed over the row: `[rows]`, in f32,
    /// tracked for gradients. Each position predicts the next one's label, and those of -100 do not count.
    fn log_probs(&self, rows: &TokenBatch, pass: &Pass) -> Tensor<1>;
}

impl Likelihood for Gpt {
    fn log_probs(&self, rows: &TokenBatch, pass: &Pass) -> Tensor<1> {
        log_probs(rows, pass, &self.head(), |placed, pass| self.hidden(placed, pass))
    }
}

impl Likelihood for Llama {
    fn log_probs(&self, rows: &TokenBatch, pass: &Pass) -> Tensor<1> {
        log_probs(rows, pass, &self.head(), |placed, pass| self.hidden(placed, pass))
    }
}

/// Selected positions are multiples of this number, so that GPUs meet few shapes.
const SELECTED: usize = 64;

/// Computes the log-probabilities of rows, with the logits of labels alone, and not all of these at once. `hidden` is
/// the model without its `head`; it returns `[batch, length, width]` of the shape of its input.
fn log_probs(
    batch: &TokenBatch,
    pass: &Pass,
    head: &Head,
    hidden: impl FnOnce(PlacedTokens, &Pass) -> Tensor<3>,
) -> Tensor<1> {
    let ([rows, _], device) = (batch.shape(), pass.device());
    let Some(read) = Read::of(batch, pass) else {
        return Tensor::zeros([rows], (device, DType::F32));
    };
    let (labels, of_rows) = (read.labels(), read.tokens.rows());
    let hidden = hidden(read.placed, &read.pass).flatten::<2>(0, 1);
    let mut at: Vec<i32> =
        (0..).zip(&labels).filter(|(_, label)| **label != IGNORE).map(|(at, _)| at).collect();
    let mut positions = vec![Vec::new(); rows];
    at.iter().enumerate().for_each(|(selected, at)| positions[of_rows[*at as usize]].push(selected as i32));
    let mut labels: Vec<i32> = at.iter().map(|at| labels[*at as usize]).collect();
    // One position more, without a label: its loss is 0, which fills up the rows.
    let none = at.len() as i32;
    let selected = (at.len() + 1).next_multiple_of(SELECTED);
    labels.resize(selected, IGNORE);
    at.resize(selected, 0);
    let ints = |values: Vec<i32>| Tensor::<1, Int>::from_data(TensorData::from(&*values), device);
    let losses = head_losses(hidden.select(0, ints(at)), head, &labels);
    let most = positions.iter().map(Vec::len).max().unwrap_or(0).max(1);
    positions.iter_mut().for_each(|row| row.resize(most, none));
    let losses = losses.select(0, ints(positions.concat())).reshape([rows, most]);
    losses.sum_dim(1).squeeze_dim::<1>(1).neg()
}
