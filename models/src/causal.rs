//! The inputs of a causal language model, and its loss.

use burn::tensor::{Int, Tensor};
use firebrick::Loss;
use firebrick_datasets::{Batch, IGNORE, TokenBatch};
use firebrick_kernels::{Head, Reads};
use firebrick_strategies::{ContextColumns, Pass};

use super::attention::starts_of;
use super::ragged::Tokens;
use crate::vocabulary::output_loss;

/// Tokens with their positions, and what they read.
pub(crate) struct PlacedTokens {
    /// `[batch, length]`.
    pub ids: Tensor<2, Int>,
    /// The position of each token in its sample, from 0: `[batch, length]`, or `[1, length]` for all rows alike.
    pub places: Tensor<2, Int>,
    /// What each position reads.
    pub reads: Reads,
    /// The number of tokens in each token's sample, of the shape of `places`; `None` for as many as are read.
    pub sample_lengths: Option<Vec<u32>>,
}

impl PlacedTokens {
    /// Rows that hold one sample each, starting in column 0.
    pub fn in_columns(ids: Tensor<2, Int>) -> Self {
        let ([_, length], device) = (ids.dims(), ids.device());
        let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze();
        Self { ids, places, reads: Reads::causal(length), sample_lengths: None }
    }
}

/// What a causal model reads of a batch. The last token of a row is only a label and is not an input.
pub(crate) struct Read<'a> {
    batch: &'a TokenBatch,
    /// The tokens that are computed.
    pub tokens: Tokens,
    pub placed: PlacedTokens,
    /// The pass that knows where the rows stand.
    pub pass: Pass,
}

impl<'a> Read<'a> {
    /// Reads all tokens of a batch. Returns `None` if there is no token to compute.
    pub fn of(batch: &'a TokenBatch, pass: &Pass) -> Option<Self> {
        Self::of_columns(batch, pass, None)
    }

    /// Reads the tokens of this rank, where ranks share those of a batch, and all tokens elsewhere. Returns `None` if there
    /// is no token to compute.
    pub fn shared(batch: &'a TokenBatch, pass: &Pass) -> Option<Self> {
        let [_, columns] = batch.shape();
        Self::of_columns(batch, pass, pass.context_columns(columns.saturating_sub(1)))
    }

    fn of_columns(batch: &'a TokenBatch, pass: &Pass, own: Option<ContextColumns>) -> Option<Self> {
        let ([rows, columns], device) = (batch.shape(), pass.device());
        let tokens = Tokens::of_readers(batch, pass, own);
        if tokens.is_empty() {
            return None;
        }
        let ids = tokens.ints(&but_last(batch.host_ids(), columns), device);
        let mut placed = match batch.host_position_ids() {
            None if tokens.are_in_columns() => PlacedTokens::in_columns(ids),
            places => {
                let places = places.map_or_else(
                    || (0..rows).flat_map(|_| 0..columns.saturating_sub(1) as i32).collect(),
                    |places| but_last(places, columns),
                );
                let reads = match batch.host_segments() {
                    Some(samples) => tokens.read_causally(&but_last(samples, columns)),
                    None => tokens.read_causally(&but_last(batch.host_mask(), columns)),
                };
                PlacedTokens { ids, places: tokens.ints(&places, device), reads, sample_lengths: None }
            }
        };
        // A token that is only a label belongs to its sample, as it does where the model reads whole rows.
        let lengths = match batch.host_segments() {
            Some(samples) => sample_lengths(samples, columns),
            None => sample_lengths(batch.host_mask(), columns),
        };
        let lengths = tokens.select(&but_last(&lengths, columns), 1);
        placed.sample_lengths = Some(lengths);
        let pass = tokens.pass(pass, || starts_of(batch.host_mask(), columns));
        Some(Self { batch, tokens, placed, pass })
    }

    /// Returns the label of each computed token.
    pub fn labels(&self) -> Vec<i32> {
        let [_, columns] = self.batch.shape();
        let rows = self.batch.host_labels().chunks(columns.max(1));
        self.tokens.select(&rows.flat_map(|row| &row[1..]).copied().collect::<Vec<_>>(), IGNORE)
    }
}

/// The loss of predicting each next token. `hidden` is the model without its `head`; it returns `[batch, length, width]`
/// of the shape of its input.
pub(super) fn next_token_loss(
    batch: TokenBatch,
    pass: &Pass,
    head: &Head,
    hidden: impl FnOnce(PlacedTokens, &Pass) -> Tensor<3>,
) -> Loss {
    let Some(read) = Read::shared(&batch, pass) else { return Loss::of_nothing(pass) };
    let labels = read.labels();
    let hidden = hidden(read.placed, &read.pass);
    Loss { sum: output_loss(hidden, head, &labels, pass), items: batch.items() }
}

/// The length of each token's sample, in rows of so many columns. The tokens of a sample stand side by side with the same
/// label.
fn sample_lengths<T: PartialEq>(labels: &[T], columns: usize) -> Vec<u32> {
    let samples = labels.chunks(columns.max(1)).flat_map(|row| row.chunk_by(T::eq));
    samples.flat_map(|sample| std::iter::repeat_n(sample.len() as u32, sample.len())).collect()
}

/// The values of each row without those of its last column.
fn but_last<T: Copy>(values: &[T], columns: usize) -> Vec<T> {
    values.chunks(columns.max(1)).flat_map(|row| &row[..row.len() - 1]).copied().collect()
}
