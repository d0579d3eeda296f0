//! How surprised a model is by a token.

use crate::{Evaluation, Loss, Score};

/// Counts of a loss, which [`perplexity`] makes a score of.
pub(super) fn counted(loss: Loss) -> Evaluation {
    let counts = vec![loss.sum.clone().into_scalar::<f64>(), loss.items as f64];
    Evaluation { loss, counts }
}

/// e to the mean loss of a token, of the sums of all [counts](counted).
pub(super) fn perplexity(counts: &[f64]) -> Score {
    let [sum, items] = counts.try_into().unwrap_or([f64::NAN; 2]);
    Score::lower("perplexity", (sum / items).exp())
}
