//! Accuracy over unmasked items.

use crate::counts::whole_array;
use crate::report::share;
use crate::{Metric, MetricError};

/// The share of correct items among those that count: masked tokens of a masked language model, next tokens, labels of
/// words.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{MaskedAccuracy, Metric};
///
/// let (predictions, labels) = ([4, 8, 15, 16], [4, -100, 23, 16]);
/// let items = labels.iter().filter(|&&label| label != -100).count();
/// let correct = predictions.iter().zip(&labels).filter(|(prediction, label)| prediction == label).count();
///
/// let mut accuracy = MaskedAccuracy::new();
/// accuracy.add(correct as u64, items as u64)?;
/// assert_eq!(accuracy.score(), Some(2.0 / 3.0));
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MaskedAccuracy {
    correct: u64,
    items: u64,
}

impl MaskedAccuracy {
    /// Creates an empty metric.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the number of correct items in a batch and the number of all its items.
    ///
    /// # Errors
    ///
    /// [`MetricError::Correct`] if there are more correct items than items. In that case nothing is added.
    pub fn add(&mut self, correct: u64, items: u64) -> Result<(), MetricError> {
        if correct > items {
            return Err(MetricError::Correct { correct, items });
        }
        self.correct = self.correct.saturating_add(correct);
        self.items = self.items.saturating_add(items);
        Ok(())
    }
}

impl Metric for MaskedAccuracy {
    /// From 0 to 1; `None` if there were no items.
    type Score = Option<f64>;

    const NAME: &'static str = "masked accuracy";

    fn score(&self) -> Option<f64> {
        (self.items > 0).then(|| share(self.correct, self.items))
    }

    /// Returns the correct items and all items.
    fn counts(&self) -> Vec<f64> {
        vec![self.correct as f64, self.items as f64]
    }

    fn from_counts(_: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let [correct, items] = whole_array(Self::NAME, counts)?;
        Ok(Self { correct, items })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_correct_items_than_items() {
        let mut accuracy = MaskedAccuracy::new();
        assert_eq!(accuracy.score(), None);
        assert_eq!(accuracy.add(3, 2), Err(MetricError::Correct { correct: 3, items: 2 }));
        accuracy.add(0, 0).unwrap();
        assert_eq!(accuracy.score(), None);
        accuracy.add(1, 2).unwrap();
        assert_eq!(accuracy.score(), Some(0.5));
    }
}
