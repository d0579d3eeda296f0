//! The trait of all metrics: they can be scored, merged, and sent between ranks as plain numbers.

use crate::MetricError;

/// A score that is accumulated over batches and ranks.
///
/// A metric holds its settings and the counts of what was added to it. The counts of two shards, added element
/// by element, are the counts of both. Ranks can therefore exchange them as arrays with a sum, and every rank
/// then has the score of the whole, bit for bit, because all counts are whole numbers, even for sums of
/// fractions.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{Bleu, Metric};
///
/// let (mut first, mut second) = (Bleu::new(), Bleu::new());
/// first.add(&["the cat sat on the mat"], &[["the cat sat on a mat"]])?;
/// second.add(&["good morning to you all"], &[["good morning to all of you"]])?;
///
/// // The work of an all-reduce with a sum.
/// let summed: Vec<f64> = first.counts().iter().zip(second.counts()).map(|(a, b)| a + b).collect();
/// let whole = Bleu::from_counts(&first, &summed)?;
///
/// first.merge(&second)?;
/// assert_eq!(whole.score(), first.score());
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
pub trait Metric: Sized {
    /// The type of the score.
    type Score;

    /// The metric's name in errors.
    const NAME: &'static str;

    /// Returns the score of everything added.
    fn score(&self) -> Self::Score;

    /// Returns the counts of everything added. Their number depends only on the settings.
    fn counts(&self) -> Vec<f64>;

    /// Creates a metric with the settings of another and these counts.
    ///
    /// # Errors
    ///
    /// [`MetricError::Counts`] if their number does not fit the settings, or if one is not a whole number of at most
    /// 2^53, as every count is.
    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError>;

    /// Returns whether another metric has the same settings, so that the two can be merged. Default: there are no
    /// settings.
    fn same_settings(&self, other: &Self) -> bool {
        let _ = other;
        true
    }

    /// Adds everything that was added to another metric.
    ///
    /// # Errors
    ///
    /// [`MetricError::Settings`] if the settings differ, [`MetricError::Counts`] if a count would exceed 2^53. In both
    /// cases nothing is added.
    fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if !self.same_settings(other) {
            return Err(MetricError::Settings { metric: Self::NAME });
        }
        let summed: Vec<f64> = self.counts().iter().zip(other.counts()).map(|(a, b)| a + b).collect();
        *self = Self::from_counts(self, &summed)?;
        Ok(())
    }
}
