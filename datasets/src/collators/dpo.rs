//! How pairs are learned.

use serde::{Deserialize, Serialize};

use crate::{DataError, Reference, SampleError};

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
