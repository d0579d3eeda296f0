//! The perplexity score.

use firebrick::{Evaluation, Loss, Score};

/// The loss with the counts from which [`perplexity`] computes its score.
pub(super) fn counted(loss: Loss) -> Evaluation {
    let counts = vec![loss.sum.clone().into_scalar::<f64>(), loss.items as f64];
    Evaluation { loss, counts }
}

/// The exponential of the mean loss per token, from the sums of all [counts](counted).
pub(super) fn perplexity(counts: &[f64]) -> Score {
    let [sum, items] = counts.try_into().unwrap_or([f64::NAN; 2]);
    Score::lower("perplexity", (sum / items).exp())
}
