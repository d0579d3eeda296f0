//! A sample of a causal language model.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{DataError, IGNORE, token_batch::signed_row};

/// Token ids and the length of the prompt, which does not count in the loss.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CausalSample {
    /// The token ids.
    pub ids: Vec<u32>,
    /// The number of leading tokens that do not count in the loss.
    pub prompt: usize,
    /// Further tokens that do not count in the loss.
    pub unlearned: Vec<Range<usize>>,
}

impl CausalSample {
    /// Returns whether a token counts. The first one is never predicted.
    pub(super) fn counts(&self) -> bool {
        let first = self.prompt.max(1);
        let ignored: usize =
            self.unlearned.iter().map(|tokens| tokens.end - tokens.start.max(first).min(tokens.end)).sum();
        self.ids.len() > first + ignored
    }

    /// Returns the labels: each token's id, or [`IGNORE`](crate::IGNORE) in the prompt.
    pub(super) fn labels(&self) -> Result<Vec<i32>, DataError> {
        let mut labels = signed_row(&self.ids)?;
        labels.iter_mut().take(self.prompt).for_each(|label| *label = IGNORE);
        for tokens in &self.unlearned {
            labels.iter_mut().take(tokens.end).skip(tokens.start).for_each(|label| *label = IGNORE);
        }
        Ok(labels)
    }
}
