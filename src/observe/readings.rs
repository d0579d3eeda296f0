//! The numbers of a run as people and trackers see them: their names and formats, and meters that follow them over a round,
//! as burn-train's dashboard and metric files have them.

use std::sync::Arc;

use burn::train::metric::{
    MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry,
};

use crate::Score;
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, StepNumbers};
use crate::observe::utilization::Devices;

/// The name of the loss.
pub const LOSS: &str = "Loss";

/// The readings in bytes.
pub(crate) const BYTES: [&str; 6] =
    ["Memory", "Activations", "Peak memory", "Parameters", "Gradients", "Optimizer"];

/// The name of the loss scale.
pub const LOSS_SCALE: &str = "Loss scale";

/// Tokens per second of one of several devices.
pub(crate) const PER_DEVICE: &str = "Tokens per second per device";

/// Model FLOPs utilization, in percent.
pub(crate) const MFU: &str = "MFU";

/// The share of a step that a rank waited for another, the longest of all ranks.
pub const WAITING: &str = "Waiting for a rank";
/// The rank that the others waited for longest.
pub const SLOWEST: &str = "Slowest rank";

/// A number of a step or of an evaluated batch.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The name that people see.
    pub name: &'static str,
    /// `None` if there is no value, as in a skipped step.
    pub value: Option<f64>,
    /// Number of items that the value is the mean of.
    pub weight: usize,
}

/// The readings of a step, the loss first.
pub fn of_step(step: &StepNumbers) -> [Reading; 16] {
    // A skipped step made no update: its loss and norm belong to dropped gradients.
    [
        (LOSS, step.applied(step.loss), step.items),
        ("Learning rate", step.applied(step.learning_rate), 1),
        ("Gradient norm", step.applied(step.gradient_norm), 1),
        ("Tokens per second", Some(step.tokens_per_second), 1),
        (PER_DEVICE, step.tokens_per_second_per_device, 1),
        (MFU, step.mfu.map(|share| 100.0 * share), 1),
        ("Skipped steps", Some(step.skipped_steps as f64), 1),
        (LOSS_SCALE, step.loss_scale, 1),
        (WAITING, step.waiting(), 1),
        (SLOWEST, step.slowest_rank.map(|rank| rank as f64), 1),
        ("Memory", Some(step.memory_bytes as f64), 1),
        ("Activations", Some(step.activation_bytes as f64), 1),
        ("Peak memory", Some(step.peak_bytes as f64), 1),
        ("Parameters", Some(step.parameter_bytes as f64), 1),
        ("Gradients", Some(step.gradient_bytes as f64), 1),
        ("Optimizer", Some(step.optimizer_bytes as f64), 1),
    ]
    .map(|(name, value, weight)| Reading { name, value, weight })
}

/// Formats a reading for people.
pub(crate) fn format_reading(name: &str, value: f64) -> String {
    match name {
        "Learning rate" => format!("{value:.2e}"),
        "Tokens per second" | PER_DEVICE if value >= 1e4 => format!("{:.1}k", value / 1e3),
        "Tokens per second" | PER_DEVICE | "Skipped steps" => format!("{value:.0}"),
        MFU => format!("{value:.1}%"),
        LOSS_SCALE | SLOWEST => format!("{value}"),
        WAITING => format!("{value:.0}%"),
        name if BYTES.contains(&name) => format!("{:.1} MB", value / 1e6),
        _ => format!("{value:.4}"),
    }
}

/// Returns the known numbers of a step. A skipped step has no rate, and its loss would only distort the curve.
pub fn scalars(step: &StepNumbers) -> impl Iterator<Item = (&'static str, f64)> + use<> {
    let values = [
        ("tokens_per_second", Some(step.tokens_per_second)),
        ("tokens_per_second_per_device", step.tokens_per_second_per_device),
        ("mfu", step.mfu),
        ("skipped_steps", Some(step.skipped_steps as f64)),
        ("memory_bytes", Some(step.memory_bytes as f64)),
        ("peak_bytes", Some(step.peak_bytes as f64)),
        ("loss_scale", step.loss_scale),
        ("loss", step.applied(step.loss)),
        ("learning_rate", step.applied(step.learning_rate)),
        ("gradient_norm", step.applied(step.gradient_norm)),
    ];
    values.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// Formats seconds: `0.65 s`, `2 min 43 s`, `3 h 12 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round();
    match seconds {
        _ if !seconds.is_finite() || !(0.0..1e15).contains(&seconds) => "unknown".into(),
        ..0.1 => format!("{:.1} ms", seconds * 1e3),
        ..60.0 if whole < 60.0 => format!("{} s", (seconds * 100.0).round() / 100.0),
        ..3600.0 if whole < 3600.0 => format!("{:.0} min {:.0} s", (whole / 60.0).floor(), whole % 60.0),
        ..172_800.0 => {
            format!("{:.0} h {:.0} min", (whole / 3600.0).floor(), (whole % 3600.0 / 60.0).floor())
        }
        _ => format!("{:.0} d {:.0} h", (whole / 86400.0).floor(), (whole % 86400.0 / 3600.0).floor()),
    }
}

/// Follows one reading over a round.
#[derive(Clone, Debug)]
struct Meter {
    name: &'static str,
    unit: Option<&'static str>,
    higher_is_better: bool,
    /// Whether the value of the round is the mean of its readings, or the last of them.
    mean: bool,
    sum: f64,
    weight: usize,
    /// The last reading and its weight.
    last: Option<(f64, usize)>,
}

/// A meter's name, its text for people and for files, and its value to plot, if that is finite.
pub(crate) type Metered = (&'static str, MetricEntry, Option<NumericEntry>);

impl Meter {
    fn new(name: &'static str, unit: Option<&'static str>, higher_is_better: bool, mean: bool) -> Self {
        Self { name, unit, higher_is_better, mean, sum: 0.0, weight: 0, last: None }
    }

    fn id(&self) -> MetricId {
        MetricId::new(Arc::new(self.name.into()))
    }

    /// Returns the value of the round so far; NaN before the first reading.
    fn round(&self) -> f64 {
        match self.last {
            Some(_) if self.mean => self.sum / self.weight.max(1) as f64,
            Some((last, _)) => last,
            None => f64::NAN,
        }
    }

    /// Returns the last reading, unless it is not finite.
    fn value(&self) -> Option<NumericEntry> {
        let (value, count) = self.last.filter(|(value, _)| value.is_finite())?;
        Some(match self.mean {
            true => NumericEntry::Aggregated { aggregated_value: value, count },
            false => NumericEntry::Value(value),
        })
    }

    /// Returns the entry with this value for files.
    fn metered(&self, kept: &NumericEntry, plotted: Option<NumericEntry>) -> Metered {
        let entry = match self.last {
            None => SerializedEntry::not_available(self.unit),
            Some((last, _)) => {
                let now = format_reading(self.name, last);
                let shown = match self.mean {
                    true => format!("{now} (mean {})", format_reading(self.name, self.round())),
                    false => now,
                };
                SerializedEntry::new(shown, kept.serialize())
            }
        };
        (self.name, MetricEntry::new(self.id(), entry), plotted)
    }

    fn definition(&self) -> MetricDefinition {
        let unit = self.unit.map(str::to_string);
        let attributes = NumericAttributes { unit, higher_is_better: self.higher_is_better }.into();
        let name = Arc::new(self.name.to_string());
        MetricDefinition { metric_id: self.id(), name, description: None, attributes }
    }
}

/// Follows all readings of the steps or of the evaluations of a run, over one round at a time.
#[derive(Clone, Debug)]
pub(crate) struct Meters(Vec<Meter>);

impl Meters {
    /// Follows steps: the loss scale only if there is one, slow ranks only if there are several, and of the devices what
    /// is known.
    pub fn of_steps(scales_loss: bool, several_ranks: bool, devices: &Devices) -> Self {
        let mut meters = vec![
            Meter::new(LOSS, None, false, true),
            Meter::new("Learning rate", None, false, false),
            Meter::new("Gradient norm", None, false, true),
            Meter::new("Tokens per second", None, true, true),
        ];
        if devices.are_several() {
            meters.push(Meter::new(PER_DEVICE, None, true, true));
        }
        if devices.have_peak() {
            meters.push(Meter::new(MFU, Some("%"), true, true));
        }
        meters.push(Meter::new("Skipped steps", None, false, false));
        if scales_loss {
            meters.push(Meter::new(LOSS_SCALE, None, true, false));
        }
        if several_ranks {
            meters.push(Meter::new(WAITING, Some("%"), false, true));
            meters.push(Meter::new(SLOWEST, None, false, false));
        }
        meters.extend(BYTES.map(|name| Meter::new(name, Some("bytes"), false, false)));
        Self(meters)
    }

    /// Follows evaluations.
    pub fn of_evaluations(scores: &[Score]) -> Self {
        let scores = scores.iter().map(|score| Meter::new(score.name, None, score.higher_is_better, false));
        Self(std::iter::once(Meter::new(LOSS, None, false, true)).chain(scores).collect())
    }

    /// Returns the definitions of these and of other meters, those in bytes last.
    #[cfg_attr(not(feature = "tui"), allow(dead_code, reason = "the dashboard registers them"))]
    pub fn definitions_with(&self, others: &Self) -> Vec<MetricDefinition> {
        let is_in_bytes = |meter: &&Meter| BYTES.contains(&meter.name);
        let first = self.0.iter().filter(|meter| !is_in_bytes(meter)).chain(&others.0);
        first.chain(self.0.iter().filter(is_in_bytes)).map(Meter::definition).collect()
    }

    /// Adds a step, and returns an entry of each meter.
    pub fn add_step(&mut self, numbers: &StepNumbers) -> Vec<Metered> {
        let readings = of_step(numbers);
        self.add(|name| {
            let reading = readings.iter().find(|reading| reading.name == name)?;
            Some((reading.value?, reading.weight))
        })
    }

    /// Adds a batch of an evaluation, and returns an entry of each meter.
    pub fn add_batch(&mut self, progress: &EvaluationProgress) -> Vec<Metered> {
        self.add(|name| Some((progress.loss.filter(|_| name == LOSS)?, progress.items)))
    }

    /// Adds the scores of an evaluation, and returns an entry of each meter; none without scores.
    pub fn add_scores(&mut self, numbers: &EvaluationNumbers) -> Vec<Metered> {
        match numbers.scores.is_empty() {
            true => Vec::new(),
            false => self.add(|name| Some((*numbers.scores.get(name)?, 1))),
        }
    }

    /// Adds the readings that are found, with the number of items that each is the mean of.
    fn add(&mut self, find: impl Fn(&str) -> Option<(f64, usize)>) -> Vec<Metered> {
        let metered = self.0.iter_mut().map(|meter| {
            if let Some((value, weight)) = find(meter.name) {
                meter.sum += value * weight as f64;
                meter.weight += weight;
                meter.last = Some((value, weight));
            }
            let value = meter.value();
            meter.metered(value.as_ref().unwrap_or(&NumericEntry::Value(f64::NAN)), value.clone())
        });
        metered.collect()
    }

    /// Ends the round, and returns the values of the round; none if it had no readings.
    pub fn finish(&mut self) -> Vec<Metered> {
        if self.0.iter().all(|meter| meter.last.is_none()) {
            return Vec::new();
        }
        let metered = self.0.iter_mut().map(|meter| {
            let value = NumericEntry::Final(meter.round());
            let metered = meter.metered(&value, Some(value.clone()));
            (meter.sum, meter.weight, meter.last) = (0.0, 0, None);
            metered
        });
        metered.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        assert_eq!(
            [0.0021, 0.6501, 59.999, 163.8, 3599.9, 11_520.0, 200_000.0, f64::NAN].map(duration),
            ["2.1 ms", "0.65 s", "1 min 0 s", "2 min 44 s", "1 h 0 min", "3 h 12 min", "2 d 7 h", "unknown"]
        );
    }

    fn add(meters: &mut Meters, loss: f64, items: usize) -> (String, Option<f64>) {
        let metered = meters.add_batch(&EvaluationProgress { loss: Some(loss), items, ..Default::default() });
        let (_, entry, value) = metered.into_iter().next().unwrap();
        (entry.serialized_entry.serialized, value.map(|value| value.current()))
    }

    fn finish(meters: &mut Meters) -> Vec<String> {
        meters.finish().into_iter().map(|(_, entry, _)| entry.serialized_entry.serialized).collect()
    }

    #[test]
    fn the_mean_of_a_round_weighs_batches_by_their_items() {
        let mut meters = Meters::of_evaluations(&[Score::higher("f1", 0.0)]);
        assert_eq!(add(&mut meters, 1.0, 30), ("1,30".into(), Some(1.0)));
        assert_eq!(add(&mut meters, 5.0, 10), ("5,10".into(), Some(5.0)));
        assert_eq!(finish(&mut meters), ["2,final", "N/A"]);
        assert!(finish(&mut meters).is_empty(), "a round without readings has no values");
    }

    #[test]
    fn a_reading_that_is_not_finite_is_not_plotted_and_shows_in_the_round() {
        let mut meters = Meters::of_evaluations(&[]);
        add(&mut meters, 1.0, 10);
        assert_eq!(add(&mut meters, f64::NAN, 10), ("NaN".into(), None));
        assert_eq!(finish(&mut meters), ["NaN,final"]);
    }
}
