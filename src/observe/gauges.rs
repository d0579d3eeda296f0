//! The numbers that the dashboard shows and plots.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::metric::{
    Adaptor, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};
use burn::train::{ItemLazy, SupervisedTraining};
use burn_std::ExecutionError;

use crate::Score;
use crate::engine::step::StepNumbers;
use crate::observe::dashboard::PlaceholderModel;

/// The name of the loss.
pub const LOSS: &str = "Loss";

/// The readings in bytes.
pub(crate) const BYTES: [&str; 6] =
    ["Memory", "Activations", "Peak memory", "Parameters", "Gradients", "Optimizer"];

/// The name of the loss scale.
pub const LOSS_SCALE: &str = "Loss scale";

/// The share of a step that a rank waited for another, the longest of all ranks.
pub const WAITING: &str = "Waiting for a rank";
/// The rank that the others waited for longest.
pub const SLOWEST: &str = "Slowest rank";

/// Returns the percentage of the step.
fn waiting(step: &StepNumbers) -> Option<f64> {
    Some(100.0 * step.waited_seconds? / step.seconds.max(f64::MIN_POSITIVE))
}

/// A number of a step or of an evaluated batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    name: &'static str,
    /// `None` if there is no value, as in a skipped step.
    value: Option<f64>,
    /// Number of items that the value is the mean of.
    weight: usize,
}

/// All readings of a step or of an evaluated batch.
#[derive(Clone, Debug)]
pub(crate) struct Readings(Vec<Reading>);

impl Readings {
    pub fn of_step(step: &StepNumbers) -> Self {
        // A skipped step made no update: its loss and norm belong to dropped gradients.
        let applied = |value: f64| step.skipped.is_none().then_some(value);
        let values = [
            (LOSS, applied(step.loss), step.items),
            ("Learning rate", applied(step.learning_rate), 1),
            ("Gradient norm", applied(step.gradient_norm), 1),
            (LOSS_SCALE, step.loss_scale, 1),
            ("Tokens per second", Some(step.tokens_per_second), 1),
            (WAITING, waiting(step), 1),
            (SLOWEST, step.slowest_rank.map(|rank| rank as f64), 1),
            ("Skipped steps", Some(step.skipped_steps as f64), 1),
            ("Memory", Some(step.memory_bytes as f64), 1),
            ("Activations", Some(step.activation_bytes as f64), 1),
            ("Peak memory", Some(step.peak_bytes as f64), 1),
            ("Parameters", Some(step.parameter_bytes as f64), 1),
            ("Gradients", Some(step.gradient_bytes as f64), 1),
            ("Optimizer", Some(step.optimizer_bytes as f64), 1),
        ];
        Self(values.map(|(name, value, weight)| Reading { name, value, weight }).into())
    }

    /// Readings of a batch that other ranks have not reported yet.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    pub fn of_scores(scores: &[Score]) -> Self {
        let reading = |score: &Score| Reading { name: score.name, value: Some(score.value), weight: 1 };
        Self(scores.iter().map(reading).collect())
    }

    pub fn of_evaluation(loss: f64, items: usize) -> Self {
        Self(vec![Reading { name: LOSS, value: Some(loss), weight: items }])
    }
}

impl ItemLazy for Readings {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<Readings> for Readings {
    fn adapt(&self) -> Readings {
        self.clone()
    }
}

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

/// Formats a reading for people.
pub(crate) fn format_reading(name: &str, value: f64) -> String {
    match name {
        "Learning rate" => format!("{value:.2e}"),
        "Tokens per second" if value >= 1e4 => format!("{:.1}k", value / 1e3),
        "Tokens per second" | "Skipped steps" => format!("{value:.0}"),
        LOSS_SCALE | SLOWEST => format!("{value}"),
        WAITING => format!("{value:.0}%"),
        name if BYTES.contains(&name) => format!("{:.1} MB", value / 1e6),
        _ => format!("{value:.4}"),
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
        let reading = readings.0.iter().find(|reading| reading.name == self.name.as_str());
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
