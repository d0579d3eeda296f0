//! The confusion matrix of classes.

use crate::classification::check_classes;
use crate::counts::whole_numbers;
use crate::{Metric, MetricError};

/// How often each class of the references was predicted as each class.
///
/// Its memory is square in the classes, so it is apart from [`Classification`](crate::Classification), which is not.
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
