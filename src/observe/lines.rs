//! Prints progress as plain lines on standard error, for logs, pipes and terminals without a dashboard.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, MetricId};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};

use crate::observe::readings::{BYTES, LOSS, LOSS_SCALE, SLOWEST, WAITING, format_reading};

/// The share of a step, in percent, from which a line mentions a rank that others wait for.
const SLOW: f64 = 20.0;

/// Time between two lines of training. Evaluations always print a line.
const PAUSE: Duration = Duration::from_secs(5);

/// Prints a line every five seconds and at the end of each evaluation, or none at all.
pub(crate) struct Lines {
    shown: bool,
    total_updates: u64,
    names: HashMap<MetricId, String>,
    latest: Vec<(String, f64)>,
    /// Steps of earlier rounds.
    before: usize,
    in_round: usize,
    training: bool,
    last_line: Option<Instant>,
    /// The readings of the evaluation, in order of arrival.
    validation: Vec<(String, f64)>,
}

impl Lines {
    /// `before` is the number of updates made before the first round.
    pub fn new(shown: bool, total_updates: u64, before: u64) -> Self {
        Self {
            shown,
            total_updates,
            names: HashMap::new(),
            latest: Vec::new(),
            before: before as usize,
            in_round: 0,
            training: true,
            last_line: None,
            validation: Vec::new(),
        }
    }

    fn name_and_value(&self, state: MetricState) -> Option<(String, f64)> {
        let MetricState::Numeric(entry, Some(value)) = state else {
            return None;
        };
        let name = self.names.get(&entry.metric_id)?.clone();
        Some((name, value.current()))
    }

    fn line(&self) -> String {
        step_line((self.before + self.in_round) as u64, Some(self.total_updates), &self.latest)
    }

    fn say(&self, line: &str) {
        if self.shown {
            // A closed pipe does not end a training run.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// Formats a step as a line: updates made, the total if it is known, and the readings by name.
pub fn step_line<N: AsRef<str>>(done: u64, total: Option<u64>, readings: &[(N, f64)]) -> String {
    let mut line = format!("step {done:>6}{}", of(total));
    // 0 bytes of memory means that nothing counts bytes. To keep the line short, it has only two of the sizes.
    let is_told = |(name, value): &&(N, f64)| match name.as_ref() {
        // Printed below, if a rank is slow.
        WAITING | SLOWEST => false,
        "Memory" | "Activations" => *value > 0.0,
        name => !BYTES.contains(&name),
    };
    for (name, value) in readings.iter().filter(is_told) {
        let name = name.as_ref();
        let short = match name {
            "Learning rate" => "lr",
            "Gradient norm" => "norm",
            LOSS_SCALE => "scale",
            "Tokens per second" => "tok/s",
            "Skipped steps" => "skipped",
            "Memory" => "memory",
            "Activations" => "activations",
            _ => "loss",
        };
        line += &format!("  {short} {}", format_reading(name, *value));
    }
    let reading = |name: &str| readings.iter().find(|(known, _)| known.as_ref() == name).map(|known| known.1);
    if let (Some(share), Some(rank)) = (reading(WAITING).filter(|share| *share > SLOW), reading(SLOWEST)) {
        let share = format_reading(WAITING, share);
        line += &format!("  rank {rank} is slow: another waits for it {share} of the time");
    }
    line
}

/// Formats an evaluation as a line: updates made, and the readings by name, the loss first.
pub fn valid_line<N: AsRef<str>>(done: u64, total: Option<u64>, readings: &[(N, f64)]) -> String {
    let mut line = format!("valid {done:>5}{}", of(total));
    for (name, value) in readings {
        let name = if name.as_ref() == LOSS { "loss" } else { name.as_ref() };
        line += &format!("  {name} {value:.4}");
    }
    line
}

fn of(total: Option<u64>) -> String {
    total.map(|total| format!("/{total}")).unwrap_or_default()
}

impl MetricsRendererTraining for Lines {
    fn update_train(&mut self, state: MetricState) {
        let Some((name, value)) = self.name_and_value(state) else { return };
        match self.latest.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => {
                self.latest.push((name, value));
                self.latest.sort_by_key(|(name, _)| name != LOSS);
            }
        }
    }

    fn update_valid(&mut self, state: MetricState) {
        if let Some(reading) = self.name_and_value(state) {
            self.validation.retain(|(known, _)| *known != reading.0);
            self.validation.push(reading);
        }
    }
}

impl TrainingProgressLogger for Lines {
    fn start(&mut self, _: usize, _: usize, _: Option<usize>, label: Option<&str>) {
        self.say(label.unwrap_or("training"));
    }

    fn start_split(&mut self, split: &str, _: usize) {
        self.training = split == "train";
        if !self.training {
            self.validation.clear();
        }
    }

    fn update_split(&mut self, done: usize) {
        if !self.training {
            return;
        }
        self.in_round = done;
        if self.last_line.is_none_or(|last| last.elapsed() >= PAUSE) {
            self.last_line = Some(Instant::now());
            self.say(&self.line());
        }
    }

    fn end_split(&mut self) {
        if self.training {
            self.before += std::mem::take(&mut self.in_round);
        } else if !self.validation.is_empty() {
            self.validation.sort_by_key(|(name, _)| name != LOSS);
            self.say(&valid_line(self.before as u64, Some(self.total_updates), &self.validation));
        }
    }

    fn update_epoch(&mut self, _: usize) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _: String) {}
}

/// Lines show training only; the evaluation of a finished model has its own output.
impl MetricsRendererEvaluation for Lines {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
}

impl EvaluationProgressLogger for Lines {
    fn start_global_progress(&mut self, _: usize) {}
    fn start_test(&mut self, _: &str, _: usize) {}
    fn update_test_progress(&mut self, _: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _: String) {}
}

impl MetricsRenderer for Lines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_others_wait_for_is_told_where_it_costs() {
        let line = |share: f64| {
            let mut lines = Lines::new(false, 10, 0);
            lines.latest = vec![(LOSS.into(), 1.5), (WAITING.into(), share), (SLOWEST.into(), 3.0)];
            lines.line()
        };
        assert_eq!(line(12.0), "step      0/10  loss 1.5000");
        let slow = "step      0/10  loss 1.5000  rank 3 is slow: another waits for it 41% of the time";
        assert_eq!(line(41.2), slow);
    }
}
