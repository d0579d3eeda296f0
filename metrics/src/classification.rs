//! Classification: accuracy, precision, recall, F1 and the confusion matrix.

use crate::counts::whole_numbers;
use crate::pairs::check_pairs;
use crate::report::{Tally, share};
use crate::{Metric, MetricError, Report, Side};

/// Accuracy, precision, recall and F1 of classes, computed like scikit-learn with `zero_division=0`.
///
/// Averages are over the classes that occur in the predictions or the references, as in scikit-learn without `labels`.
/// All micro averages equal the accuracy.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{Classification, Metric};
///
/// let mut classification = Classification::new(["negative", "neutral", "positive"]);
/// classification.add(&[2, 0, 2, 2], &[2, 0, 0, 2])?;
///
/// let report = classification.score();
/// assert_eq!(report.accuracy, 0.75);
/// assert_eq!(report.class("negative").map(|class| class.scores.recall), Some(0.5));
/// assert_eq!(classification.confusion(), [[1, 0, 1], [0, 0, 0], [0, 0, 2]]);
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Classification {
    names: Vec<String>,
    /// The number of times each reference class (rows) was predicted as each class (columns), row by row.
    confusion: Vec<u64>,
}

impl Classification {
    /// Creates a metric for classes with these names. A class's number is its index among them.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let confusion = vec![0; names.len() * names.len()];
        Self { names, confusion }
    }

    /// Adds predicted classes and the classes of the references.
    ///
    /// # Errors
    ///
    /// [`MetricError::Pairs`] if their numbers differ, [`MetricError::Class`] for a number that is not a
    /// class. In both cases nothing is added.
    pub fn add(&mut self, predictions: &[usize], references: &[usize]) -> Result<(), MetricError> {
        check_pairs(predictions, references)?;
        let classes = self.names.len();
        for (side, items) in [(Side::Prediction, predictions), (Side::Reference, references)] {
            if let Some((position, &found)) = items.iter().enumerate().find(|(_, item)| **item >= classes) {
                return Err(MetricError::Class { side, position, found, classes });
            }
        }
        for (predicted, reference) in predictions.iter().zip(references) {
            if let Some(count) = self.confusion.get_mut(reference * classes + predicted) {
                *count += 1;
            }
        }
        Ok(())
    }

    /// Returns the confusion matrix: how often each reference class (rows) was predicted as each class (columns). It
    /// includes all classes, even those that never occurred.
    pub fn confusion(&self) -> Vec<Vec<u64>> {
        self.rows().map(<[u64]>::to_vec).collect()
    }

    fn rows(&self) -> impl Iterator<Item = &[u64]> {
        // `chunks` requires a nonzero width, even without classes.
        self.confusion.chunks(self.names.len().max(1))
    }
}

impl Metric for Classification {
    type Score = Report;

    const NAME: &'static str = "classification";

    /// Returns the scores per class, their averages, and the accuracy. All are 0 if nothing was added.
    fn score(&self) -> Report {
        let mut tallies = vec![Tally::default(); self.names.len()];
        for (class, row) in self.rows().enumerate() {
            for (tally, (column, &count)) in tallies.iter_mut().zip(row.iter().enumerate()) {
                tally.predicted += count;
                tally.correct += if column == class { count } else { 0 };
            }
            if let Some(tally) = tallies.get_mut(class) {
                tally.support += row.iter().sum::<u64>();
            }
        }
        let correct = tallies.iter().map(|tally| tally.correct).sum();
        let accuracy = share(correct, self.confusion.iter().sum());
        Report::new(self.names.iter().zip(tallies), accuracy)
    }

    /// Returns the confusion matrix, row by row.
    fn counts(&self) -> Vec<f64> {
        self.confusion.iter().map(|&count| count as f64).collect()
    }

    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let confusion = whole_numbers(Self::NAME, counts, settings.confusion.len())?;
        Ok(Self { names: settings.names.clone(), confusion })
    }

    fn same_settings(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_place_and_nothing_is_added() {
        let mut classification = Classification::new(["no", "yes"]);
        let error = classification.add(&[0, 1], &[0, 2]).unwrap_err();
        assert_eq!(error, MetricError::Class { side: Side::Reference, position: 1, found: 2, classes: 2 });
        let error = classification.add(&[0, 1], &[0]).unwrap_err();
        assert_eq!(error, MetricError::Pairs { predictions: 2, references: 1 });
        assert_eq!(classification.counts(), [0.0; 4]);
        assert!(classification.merge(&Classification::new(["yes", "no"])).is_err());
    }

    #[test]
    fn no_classes_and_no_items() {
        let none = Classification::new::<String>([]);
        assert_eq!((none.score().accuracy, none.confusion().len()), (0.0, 0));
        assert_eq!(Classification::new(["no", "yes"]).score().macro_average.f1, 0.0);
    }
}
