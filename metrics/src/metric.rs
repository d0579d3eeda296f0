//! What all metrics can do: be scored, be merged, and travel between ranks as plain numbers.

use crate::MetricError;

/// A score that is gathered over batches and over ranks.
///
/// A metric holds its settings and counts of what was added to it. Counts of two shards, added place
/// by place, are the counts of both. So ranks can exchange them as arrays with a sum, and every rank
/// then has the score of the whole, to the last bit: all counts are whole numbers, sums of fractions
/// included.
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
/// // What an all-reduce with a sum does.
/// let summed: Vec<f64> = first.counts().iter().zip(second.counts()).map(|(a, b)| a + b).collect();
/// let whole = Bleu::from_counts(&first, &summed)?;
///
/// first.merge(&second)?;
/// assert_eq!(whole.score(), first.score());
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
pub trait Metric: Sized {
    /// What it answers.
    type Score;

    /// Its name in errors.
    const NAME: &'static str;

    /// The score of all that was added.
    fn score(&self) -> Self::Score;

    /// All that was added, as numbers. How many there are depends on the settings alone.
    fn counts(&self) -> Vec<f64>;

    /// A metric with the settings of another, and with these counts.
    ///
    /// # Errors
    ///
    /// [`MetricError::Counts`] if they are not as many as these settings have, or if one is not a
    /// whole number of at most 2^53, as every count is.
    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError>;

    /// Whether another metric counts the same things, so that the two can be merged.
    fn same_settings(&self, other: &Self) -> bool;

    /// Adds all that was added to another metric.
    ///
    /// # Errors
    ///
    /// [`MetricError::Settings`] if the other was set up differently, [`MetricError::Counts`] if a
    /// count would exceed 2^53. Then nothing is added.
    fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if !self.same_settings(other) {
            return Err(MetricError::Settings { metric: Self::NAME });
        }
        let summed: Vec<f64> = self.counts().iter().zip(other.counts()).map(|(a, b)| a + b).collect();
        *self = Self::from_counts(self, &summed)?;
        Ok(())
    }
}
