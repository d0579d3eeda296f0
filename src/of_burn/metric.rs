//! A metric of burn-train as a score.

use burn::data::dataloader::Progress;
use burn::train::metric::{Metric, MetricAttributes, MetricMetadata, Numeric, NumericEntry};

use crate::Score;

/// A metric of burn-train, such as `AccuracyMetric`, as a [`Score`].
///
/// burn-train averages a metric over batches, weighted by the elements that each batch counts. This type does the same
/// over all batches and ranks: put [`counts`](Self::counts) into the [counts](crate::Evaluation::counts) of a batch;
/// [`score`](Self::score) computes the mean from their sums. The mean of accuracies is the accuracy of the whole data
/// set. The mean of precisions, recalls or F-scores is not theirs, as in burn-train.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use burn::train::metric::{AccuracyInput, AccuracyMetric};
/// use firebrick::of_burn::BurnMetric;
///
/// let accuracy = BurnMetric::new("accuracy", AccuracyMetric::new());
/// let device = Device::flex();
/// let counts = |outputs, targets| {
///     let outputs = Tensor::<2>::from_data::<[[f32; 2]; 2]>(outputs, &device);
///     let targets = Tensor::<1, Int>::from_data::<[i32; 2]>(targets, &device);
///     accuracy.counts(&AccuracyInput::new(outputs, targets))
/// };
/// let [first, second] = [counts([[1., 0.], [1., 0.]], [0, 1]), counts([[0., 1.], [0., 1.]], [1, 1])];
/// let score = accuracy.score(&[first[0] + second[0], first[1] + second[1]]);
/// assert_eq!((score.value, score.higher_is_better), (75.0, true)); // burn-train's accuracy is in percent
/// ```
#[derive(Clone, Debug)]
pub struct BurnMetric<M> {
    name: &'static str,
    metric: M,
}

impl<M: Metric + Numeric> BurnMetric<M> {
    /// Takes a metric, and the name of its score.
    pub fn new(name: &'static str, metric: M) -> Self {
        Self { name, metric }
    }

    /// Computes the metric of one batch: its value times its weight, and its weight. Both are 0 for a batch with nothing
    /// to count. They are NaN for a metric that has no value for a batch, such as `AurocMetric`: it cannot be summed.
    ///
    /// # Panics
    ///
    /// If the device has failed.
    pub fn counts(&self, input: &M::Input) -> [f64; 2] {
        let mut metric = self.metric.clone();
        metric.clear();
        let progress = Progress { items_processed: 0, items_total: 1, unit: None };
        let metadata = MetricMetadata { progress, iteration: None, lr: None };
        metric.update(input, &metadata).expect("the device computes the metric");
        match metric.value() {
            Some(NumericEntry::Aggregated { count: 0, .. }) => [0.0, 0.0],
            Some(NumericEntry::Aggregated { aggregated_value, count }) => {
                [aggregated_value * count as f64, count as f64]
            }
            Some(NumericEntry::Value(value) | NumericEntry::Final(value)) => [value, 1.0],
            None => [f64::NAN, f64::NAN],
        }
    }

    /// Computes the score from the two sums of [`counts`](Self::counts); NaN without them.
    pub fn score(&self, counts: &[f64]) -> Score {
        let value = match *counts {
            [sum, weight] if weight != 0.0 => sum / weight,
            _ => f64::NAN,
        };
        let higher_is_better = match self.metric.attributes() {
            MetricAttributes::Numeric(attributes) => attributes.higher_is_better,
            MetricAttributes::None => true,
        };
        Score { name: self.name, value, higher_is_better }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Int, Tensor};
    use burn::train::metric::{
        AccuracyInput, AccuracyMetric, AurocMetric, ConfusionStatsInput, LossInput, LossMetric,
    };

    #[test]
    fn batches_weigh_what_they_count() {
        let device = Device::flex();
        let metric = BurnMetric::new("accuracy", AccuracyMetric::new().with_pad_token(9));
        let counts = |targets: &[i32]| {
            let outputs = Tensor::<2>::from_data([[0.0, 1.0]], &device).repeat(&[targets.len(), 1]);
            let targets = Tensor::<1, Int>::from_data(targets, &device);
            metric.counts(&AccuracyInput::new(outputs, targets))
        };
        assert_eq!(counts(&[1, 0, 9]), [100.0, 2.0]);
        assert_eq!(counts(&[9, 9]), [0.0, 0.0]);
        assert_eq!(metric.score(&[100.0, 2.0]).value, 50.0);
        assert!(metric.score(&[]).value.is_nan());
    }

    #[test]
    fn what_is_better_is_the_metrics() {
        let metric = BurnMetric::new("mean loss", LossMetric::new());
        let losses = Tensor::<1>::from_data([1.0, 3.0], &Device::flex());
        let counts = metric.counts(&LossInput::new(losses));
        assert_eq!(metric.score(&counts), Score::lower("mean loss", 2.0));
    }

    #[test]
    fn a_metric_of_the_whole_set_is_no_number() {
        let device = Device::flex();
        let outputs = Tensor::<2>::from_data([[0.1, 0.9], [0.8, 0.2]], &device);
        let targets = Tensor::<2, Int>::from_data([[0, 1], [1, 0]], &device).bool();
        let metric = BurnMetric::new("auroc", AurocMetric::binary());
        assert!(metric.counts(&ConfusionStatsInput::new(outputs, targets))[1].is_nan());
    }
}
