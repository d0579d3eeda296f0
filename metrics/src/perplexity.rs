//! Perplexity of a language model.

use crate::counts::{ExactSum, counts_and_sums};
use crate::{Metric, MetricError};

/// Perplexity: e to the mean loss per item (Jelinek et al., 1977).
///
/// The loss is the cross-entropy in nats, summed over items: the tokens that are not masked. Batches of different sizes
/// are therefore weighted by their items.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{Metric, Perplexity};
///
/// let mut perplexity = Perplexity::new();
/// // Two batches of a model that finds 4, then 2, tokens equally likely at each position.
/// perplexity.add(30.0 * 4_f64.ln(), 30);
/// perplexity.add(10.0 * 2_f64.ln(), 10);
/// let score = perplexity.score().unwrap_or(f64::NAN);
/// assert!((score - 4_f64.powf(0.75) * 2_f64.powf(0.25)).abs() < 1e-12);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Perplexity {
    losses: ExactSum,
    items: u64,
}

impl Perplexity {
    /// Creates an empty metric.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the sum of the losses of a batch, in nats, and the number of items.
    pub fn add(&mut self, sum_of_losses: f64, items: u64) {
        self.losses.add(sum_of_losses);
        self.items = self.items.saturating_add(items);
    }

    /// Returns the mean loss per item in nats; `None` without items.
    pub fn mean_loss(&self) -> Option<f64> {
        (self.items > 0).then(|| self.losses.value() / self.items as f64)
    }
}

impl Metric for Perplexity {
    /// `None` if there were no items. [`f64::INFINITY`] if the mean loss exceeds about 709.78 nats or is infinite; NaN
    /// if a loss was.
    type Score = Option<f64>;

    const NAME: &'static str = "perplexity";

    fn score(&self) -> Option<f64> {
        self.mean_loss().map(f64::exp)
    }

    /// Returns the items, then the sum of the losses as five numbers whose sums are exact.
    fn counts(&self) -> Vec<f64> {
        let mut counts = vec![self.items as f64];
        counts.extend(self.losses.parts());
        counts
    }

    fn from_counts(_: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let ([items], [losses]) = counts_and_sums(Self::NAME, counts)?;
        Ok(Self { losses, items })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_infinity_and_no_items_have_no_score() {
        let mut perplexity = Perplexity::new();
        assert_eq!(perplexity.score(), None);
        perplexity.add(709.0, 1);
        assert!(perplexity.score().unwrap().is_finite());
        perplexity.add(711.0, 1);
        assert_eq!(perplexity.score(), Some(f64::INFINITY));
        perplexity.add(f64::NAN, 1);
        assert!(perplexity.score().unwrap().is_nan());
        assert!(
            Perplexity::from_counts(&perplexity, &perplexity.counts()).unwrap().score().unwrap().is_nan()
        );
    }

    #[test]
    fn shards_in_any_order_are_the_whole() {
        let batches = [(0.1, 3), (1e5, 2), (7.3e-9, 1), (2.5, 5)];
        let of = |batches: &[(f64, u64)]| {
            let mut perplexity = Perplexity::new();
            batches.iter().for_each(|&(losses, items)| perplexity.add(losses, items));
            perplexity
        };
        let mut merged = of(&batches[2..]);
        merged.merge(&of(&batches[..2])).unwrap();
        assert_eq!(merged, of(&batches));
        assert_eq!(merged.score(), of(&batches).score());
    }

    #[test]
    fn wrong_counts() {
        for counts in [&[][..], &[1.0], &[0.5, 0.0, 0.0, 0.0, 0.0, 0.0], &[1.0; 7]] {
            assert!(Perplexity::from_counts(&Perplexity::new(), counts).is_err(), "{counts:?}");
        }
    }
}
