//! Classification: accuracy, precision, recall and F1, and the confusion matrix.

use std::sync::Arc;

use crate::counts::whole_numbers;
use crate::pairs::check_pairs;
use crate::report::{Tally, share};
use crate::{Metric, MetricError, Report, Side};

/// Accuracy, precision, recall and F1 of classes, computed like scikit-learn with `zero_division=0`.
///
/// Averages are over the classes that occur in the predictions or the references, as in scikit-learn without `labels`.
/// All micro averages equal the accuracy. Memory and counts are three numbers for each class;
/// [`Confusion`] says which class was taken for which.
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
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Classification {
    /// Shared, since each batch of an evaluation has a metric of its own.
    names: Arc<[String]>,
    /// One tally for each class.
    tallies: Vec<Tally>,
}

impl Classification {
    /// Creates a metric for classes with these names. A class's number is its index among them.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Arc<[String]> = names.into_iter().map(Into::into).collect();
        let tallies = vec![Tally::default(); names.len()];
        Self { names, tallies }
    }

    /// Adds predicted classes and the classes of the references.
    ///
    /// # Errors
    ///
    /// [`MetricError::Pairs`] if their numbers differ, [`MetricError::Class`] for a number that is not a
    /// class. In both cases nothing is added.
    pub fn add(&mut self, predictions: &[usize], references: &[usize]) -> Result<(), MetricError> {
        check_classes(predictions, references, self.names.len())?;
        for (&predicted, &reference) in predictions.iter().zip(references) {
            if let Some(tally) = self.tallies.get_mut(predicted) {
                tally.predicted += 1;
                tally.correct += u64::from(predicted == reference);
            }
            if let Some(tally) = self.tallies.get_mut(reference) {
                tally.support += 1;
            }
        }
        Ok(())
    }
}

/// Checks that each prediction has a reference, and that both are below the number of classes.
fn check_classes(predictions: &[usize], references: &[usize], classes: usize) -> Result<(), MetricError> {
    check_pairs(predictions, references)?;
    for (side, items) in [(Side::Prediction, predictions), (Side::Reference, references)] {
        if let Some((position, &found)) = items.iter().enumerate().find(|(_, item)| **item >= classes) {
            return Err(MetricError::Class { side, position, found, classes });
        }
    }
    Ok(())
}

impl Metric for Classification {
    type Score = Report;

    const NAME: &'static str = "classification";

    /// Returns the scores per class, their averages, and the accuracy. All are 0 if nothing was added.
    fn score(&self) -> Report {
        let correct = self.tallies.iter().map(|tally| tally.correct).sum();
        let accuracy = share(correct, self.tallies.iter().map(|tally| tally.support).sum());
        Report::new(self.names.iter().zip(self.tallies.iter().copied()), accuracy)
    }

    /// Returns, for each class, the correct items, the predicted ones and those of the references.
    fn counts(&self) -> Vec<f64> {
        let tallies = self.tallies.iter().flat_map(|tally| [tally.correct, tally.predicted, tally.support]);
        tallies.map(|count| count as f64).collect()
    }

    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let counts = whole_numbers(Self::NAME, counts, 3 * settings.names.len())?;
        let tally = |counts: &[u64; 3]| {
            let &[correct, predicted, support] = counts;
            Tally { correct, predicted, support }
        };
        let tallies = counts.as_chunks::<3>().0.iter().map(tally).collect();
        Ok(Self { names: settings.names.clone(), tallies })
    }

    fn same_settings(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

/// How often each class of the references was predicted as each class.
///
/// Its memory is square in the classes, so it is apart from [`Classification`], which is not.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{Confusion, Metric};
///
/// let mut confusion = Confusion::new(3);
/// confusion.add(&[2, 0, 2, 2], &[2, 0, 0, 2])?;
/// assert_eq!(confusion.score(), [[1, 0, 1], [0, 0, 0], [0, 0, 2]]);
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    classes: usize,
    /// The number of times each reference class (rows) was predicted as each class (columns), row by row.
    counts: Vec<u64>,
}

impl Confusion {
    /// Creates the matrix of this many classes.
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes] }
    }

    /// Adds predicted classes and the classes of the references.
    ///
    /// # Errors
    ///
    /// [`MetricError::Pairs`] if their numbers differ, [`MetricError::Class`] for a number that is not a class. In both
    /// cases nothing is added.
    pub fn add(&mut self, predictions: &[usize], references: &[usize]) -> Result<(), MetricError> {
        check_classes(predictions, references, self.classes)?;
        for (predicted, reference) in predictions.iter().zip(references) {
            if let Some(count) = self.counts.get_mut(reference * self.classes + predicted) {
                *count += 1;
            }
        }
        Ok(())
    }
}

impl Metric for Confusion {
    type Score = Vec<Vec<u64>>;

    const NAME: &'static str = "confusion matrix";

    /// Returns a row for each class of the references, with a column for each predicted class. It includes all classes,
    /// even those that never occurred.
    fn score(&self) -> Vec<Vec<u64>> {
        // `chunks` requires a nonzero width, even without classes.
        self.counts.chunks(self.classes.max(1)).map(<[u64]>::to_vec).collect()
    }

    /// Returns the matrix, row by row.
    fn counts(&self) -> Vec<f64> {
        self.counts.iter().map(|&count| count as f64).collect()
    }

    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let counts = whole_numbers(Self::NAME, counts, settings.counts.len())?;
        Ok(Self { classes: settings.classes, counts })
    }

    fn same_settings(&self, other: &Self) -> bool {
        self.classes == other.classes
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
        assert_eq!(classification.counts(), [0.0; 6]);
        assert!(classification.merge(&Classification::new(["yes", "no"])).is_err());
    }

    #[test]
    fn no_classes_and_no_items() {
        let none = Classification::new::<String>([]);
        assert_eq!((none.score().accuracy, none.counts().len()), (0.0, 0));
        assert_eq!(Classification::new(["no", "yes"]).score().macro_average.f1, 0.0);
    }

    /// A square of counts would take 80 GB here.
    #[test]
    fn memory_is_linear_in_the_classes() {
        let mut classification = Classification::new((0..100_000).map(|class| class.to_string()));
        classification.add(&[99_999, 1, 2], &[99_999, 1, 3]).unwrap();
        assert_eq!(classification.counts().len(), 300_000);
        let report = Classification::from_counts(&classification, &classification.counts()).unwrap().score();
        // Of the four classes that occur, two are always right and two are never right.
        assert_eq!((report.classes.len(), report.macro_average.f1), (4, 0.5));
        assert_eq!(report.accuracy, 2.0 / 3.0);
    }
}

#[cfg(test)]
mod confusion_tests {
    use super::*;
    use crate::Side;

    #[test]
    fn errors_name_the_place_and_nothing_is_added() {
        let mut confusion = Confusion::new(2);
        let error = confusion.add(&[0, 3], &[0, 1]).unwrap_err();
        assert_eq!(error, MetricError::Class { side: Side::Prediction, position: 1, found: 3, classes: 2 });
        assert!(confusion.add(&[0], &[]).is_err());
        assert_eq!(confusion, Confusion::new(2));
        assert!(confusion.merge(&Confusion::new(3)).is_err());
        assert!(Confusion::new(0).score().is_empty());
    }
}
