//! Registers the numbers of a step with burn-train, which shows and plots them.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::SupervisedTraining;
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::Score;
use crate::observe::placeholder::PlaceholderModel;
use crate::observe::readings::{
    BYTES, LOSS, LOSS_SCALE, Reading, Readings, SLOWEST, WAITING, format_reading,
};

/// Follows one reading over a round.
#[derive(Clone, Debug)]
struct Gauge {
    name: MetricName,
    unit: Option<&'static str>,
    higher_is_better: bool,
    /// Whether the value of the round is the mean of its readings, or the last of them.
    mean: bool,
    sum: f64,
    weight: usize,
    /// The last reading and its weight.
    last: Option<(f64, usize)>,
}

impl Gauge {
    fn new(name: &str, unit: Option<&'static str>, higher_is_better: bool, mean: bool) -> Self {
        Self { name: Arc::new(name.into()), unit, higher_is_better, mean, sum: 0.0, weight: 0, last: None }
    }

    /// Returns the value of the round so far; NaN before the first reading.
    fn round(&self) -> f64 {
        match self.last {
            Some(_) if self.mean => self.sum / self.weight.max(1) as f64,
            Some((last, _)) => last,
            None => f64::NAN,
        }
    }

    /// Returns the entry as shown, and as a metric file stores it.
    fn entry(&self, kept: &NumericEntry) -> SerializedEntry {
        let Some((last, _)) = self.last else {
            return SerializedEntry::not_available(self.unit);
        };
        let now = format_reading(&self.name, last);
        let shown = match self.mean {
            true => format!("{now} (mean {})", format_reading(&self.name, self.round())),
            false => now,
        };
        SerializedEntry::new(shown, kept.serialize())
    }
}

impl Metric for Gauge {
    type Input = Readings;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        let unit = self.unit.map(str::to_string);
        let higher_is_better = self.higher_is_better;
        NumericAttributes { unit, higher_is_better }.into()
    }

    fn update(
        &mut self,
        readings: &Readings,
        _: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let reading = readings.of(&self.name);
        if let Some(Reading { value: Some(value), weight, .. }) = reading {
            self.sum += value * *weight as f64;
            self.weight += weight;
            self.last = Some((*value, *weight));
        }
        Ok(self.entry(&self.value().unwrap_or(NumericEntry::Value(f64::NAN))))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry(&self.final_value()))
    }

    fn clear(&mut self) {
        let (mean, name) = (self.mean, self.name.clone());
        *self = Self::new(&name, self.unit, self.higher_is_better, mean);
    }
}

impl Numeric for Gauge {
    /// A non-finite value cannot be plotted.
    fn value(&self) -> Option<NumericEntry> {
        let (value, count) = self.last.filter(|(value, _)| value.is_finite())?;
        Some(match self.mean {
            true => NumericEntry::Aggregated { aggregated_value: value, count },
            false => NumericEntry::Value(value),
        })
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.last.map(|_| NumericEntry::Value(self.round()))
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Final(self.round())
    }
}

/// Registers the gauges with burn-train's dashboard and metric files: the loss scale only if there is one, slow ranks
/// only if there are several, and the model's scores.
pub(crate) fn register(
    training: SupervisedTraining<PlaceholderModel>,
    scales_loss: bool,
    several_ranks: bool,
    scores: &[Score],
) -> SupervisedTraining<PlaceholderModel> {
    let training = training
        .metric_train_numeric(Gauge::new(LOSS, None, false, true))
        .metric_valid_numeric(Gauge::new(LOSS, None, false, true))
        .metric_train_numeric(Gauge::new("Learning rate", None, false, false))
        .metric_train_numeric(Gauge::new("Gradient norm", None, false, true))
        .metric_train_numeric(Gauge::new("Tokens per second", None, true, true))
        .metric_train_numeric(Gauge::new("Skipped steps", None, false, false));
    let training = match scales_loss {
        true => training.metric_train_numeric(Gauge::new(LOSS_SCALE, None, true, false)),
        false => training,
    };
    let training = match several_ranks {
        true => training
            .metric_train_numeric(Gauge::new(WAITING, Some("%"), false, true))
            .metric_train_numeric(Gauge::new(SLOWEST, None, false, false)),
        false => training,
    };
    let training = scores.iter().fold(training, |training, score| {
        training.metric_valid_numeric(Gauge::new(score.name, None, score.higher_is_better, false))
    });
    BYTES.into_iter().fold(training, |training, name| {
        training.metric_train_numeric(Gauge::new(name, Some("bytes"), false, false))
    })
}

#[cfg(test)]
mod tests {
    use burn::data::dataloader::Progress;

    use super::*;

    fn update(gauge: &mut Gauge, loss: f64, items: usize) {
        let metadata = MetricMetadata { progress: Progress::new(1, 1, None), iteration: None, lr: None };
        gauge.update(&Readings::of_evaluation(loss, items), &metadata).unwrap();
    }

    #[test]
    fn the_mean_of_a_round_weighs_batches_by_their_items() {
        let mut gauge = Gauge::new(LOSS, None, false, true);
        update(&mut gauge, 1.0, 30);
        update(&mut gauge, 5.0, 10);
        assert_eq!(gauge.final_value().current(), 2.0);
        assert_eq!(gauge.value().unwrap().current(), 5.0);
    }

    #[test]
    fn a_reading_that_is_not_finite_is_not_plotted_and_shows_in_the_round() {
        let mut gauge = Gauge::new(LOSS, None, false, true);
        assert!(gauge.value().is_none() && gauge.final_value().current().is_nan());
        update(&mut gauge, 1.0, 10);
        update(&mut gauge, f64::NAN, 10);
        assert!(gauge.value().is_none() && gauge.final_value().current().is_nan());
    }
}
