//! Padded pairs of answers, and how they are learned.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::CausalSample;
use crate::{Batch, Compared, DataError, Padding, Reference, SampleError, TokenBatch};

/// A better and a worse answer to one prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreferenceSample {
    chosen: CausalSample,
    rejected: CausalSample,
    id: u128,
}

impl PreferenceSample {
    /// Creates a pair. In both rows, the prompt does not count.
    pub fn new(chosen: CausalSample, rejected: CausalSample) -> Self {
        let mut hasher = blake3::Hasher::new();
        for CausalSample { ids, prompt, unlearned } in [&chosen, &rejected] {
            let numbers = [ids.len(), *prompt, unlearned.len()].map(|number| number as u64);
            let ranges = unlearned.iter().flat_map(|range| [range.start as u64, range.end as u64]);
            numbers.into_iter().chain(ranges).chain(ids.iter().map(|&id| id.into())).for_each(|number| {
                hasher.update(&number.to_le_bytes());
            });
        }
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        Self { chosen, rejected, id: u128::from_le_bytes(id) }
    }

    /// Returns the prompt with the better answer.
    pub fn chosen(&self) -> &CausalSample {
        &self.chosen
    }

    /// Returns the prompt with the worse answer.
    pub fn rejected(&self) -> &CausalSample {
        &self.rejected
    }

    /// Returns a hash of the contents.
    pub fn id(&self) -> u128 {
        self.id
    }

    /// Returns the rows of the pair.
    pub(super) fn rows(&self) -> [&CausalSample; 2] {
        [&self.chosen, &self.rejected]
    }

    /// Returns whether something counts in both answers.
    pub(super) fn counts(&self) -> bool {
        self.rows().into_iter().all(CausalSample::counts)
    }
}

/// A padded batch of pairs. A pair is a sample and an item.
#[derive(Debug, Clone, PartialEq)]
pub struct PreferenceBatch {
    rows: TokenBatch,
    ids: Vec<u128>,
    dpo: Dpo,
    reference: Option<Vec<f32>>,
}

impl PreferenceBatch {
    /// Pads pairs to a batch.
    ///
    /// # Errors
    ///
    /// A row is longer than the padding's fixed length, or an id is too large for a tensor.
    pub fn new(
        pairs: &[Arc<PreferenceSample>],
        dpo: Dpo,
        padding: &Padding,
        pad_id: u32,
    ) -> Result<Self, DataError> {
        let rows = || pairs.iter().flat_map(|pair| pair.rows());
        let labels = rows().map(CausalSample::labels).collect::<Result<_, _>>()?;
        let ids = pairs.iter().map(|pair| pair.id).collect();
        let rows = TokenBatch::padded(rows().map(|row| row.ids.clone()).collect(), labels, padding, pad_id)?;
        Ok(Self { rows, ids, dpo, reference: None })
    }

    /// Returns the rows: the chosen and the rejected one of each pair, one after the other. Labels are
    /// [`IGNORE`](crate::IGNORE) in prompts.
    pub fn rows(&self) -> &TokenBatch {
        &self.rows
    }

    /// Returns how the pairs are learned.
    pub fn dpo(&self) -> Dpo {
        self.dpo
    }

    /// Returns the log-probabilities of the answers by the reference model, one for each row; none before a trainer has
    /// asked it.
    pub fn reference(&self) -> Option<&[f32]> {
        self.reference.as_deref()
    }
}

impl Batch for PreferenceBatch {
    fn items(&self) -> usize {
        self.ids.len()
    }

    fn samples(&self) -> usize {
        self.ids.len()
    }

    fn tokens(&self) -> usize {
        self.rows.tokens()
    }

    fn compared(&self) -> Option<Compared> {
        Some(Compared { with: self.dpo.reference, samples: self.ids.clone() })
    }

    fn answered(&mut self, numbers: Vec<f32>) {
        self.reference = Some(numbers);
    }

    fn row_count(&self) -> usize {
        self.rows.shape()[0]
    }
}

/// Direct preference optimization (Rafailov et al., 2023, arXiv:2305.18290).
///
/// The loss of a pair, where π is the probability of an answer after its prompt by the trained model and ρ that by the
/// reference model, σ the logistic function, and ε the label smoothing (Mitchell, 2023, "cDPO"):
///
/// ```text
/// h = ln π(chosen) - ln ρ(chosen) - (ln π(rejected) - ln ρ(rejected))
/// loss = -(1 - ε) · ln σ(β h) - ε · ln σ(-β h)
/// ```
///
/// At the start of training, the model equals its reference: h is 0, and the loss ln 2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dpo {
    /// β, above 0: how strongly the model is kept near its reference. Default: 0.1.
    pub beta: f64,
    /// ε, at least 0 and below 0.5: the share of pairs whose labels are taken to be swapped. Default: 0.
    pub label_smoothing: f64,
    /// The reference model. Default: `Frozen`.
    pub reference: Reference,
}

impl Default for Dpo {
    fn default() -> Self {
        Self { beta: 0.1, label_smoothing: 0.0, reference: Reference::default() }
    }
}

impl Dpo {
    /// Returns the first setting that is out of range, with its range and its value.
    pub fn out_of_range(&self) -> Option<(&'static str, &'static str, f64)> {
        let Self { beta, label_smoothing, .. } = *self;
        if !(beta > 0.0 && beta <= 1000.0) {
            return Some(("beta", "above 0 and at most 1000", beta));
        }
        let possible = (0.0..0.5).contains(&label_smoothing);
        (!possible).then_some(("label_smoothing", "at least 0 and below 0.5", label_smoothing))
    }

    /// Checks the ranges of the settings.
    ///
    /// # Errors
    ///
    /// [`SampleError::Setting`](crate::SampleError::Setting), for the first one that is out of range.
    pub fn check(&self) -> Result<(), DataError> {
        match self.out_of_range() {
            None => Ok(()),
            Some((setting, expected, found)) => {
                Err(SampleError::Setting { setting, expected, found: found.to_string() }.into())
            }
        }
    }
}
