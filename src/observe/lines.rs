//! Prints progress as plain lines on standard error, for logs, pipes and terminals without a dashboard.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use firebrick_datasets::counted;

use crate::Score;
use crate::observe::duration::duration;
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::pace::Pace;
use crate::observe::plain_text::plain;
use crate::observe::readings::{
    BYTES, LOSS_SCALE, MFU, PER_DEVICE, Reading, SLOWEST, WAITING, format_reading, of_step,
};

/// The share of a step, in percent, from which a line mentions a rank that others wait for.
const SLOW: f64 = 20.0;

/// Time between two lines of training. Evaluations always print a line.
const PAUSE: Duration = Duration::from_secs(5);

/// An evaluation that takes longer says how far it is.
const LONG: Duration = Duration::from_secs(1);

/// Prints a line every five seconds and at the end of each evaluation. The speed is that of the last steps, and so is
/// the time left.
#[derive(Default)]
pub(crate) struct Lines {
    total_updates: u64,
    /// The names of the scores, in the model's order.
    scores: Vec<&'static str>,
    /// The latest finite value of each reading.
    latest: Option<[Reading; 16]>,
    pace: Pace,
    /// Time between two lines of training.
    pause: Duration,
    last_line: Option<Instant>,
    /// When the evaluation in progress began, or its last line was printed.
    evaluating: Option<Instant>,
}

impl Lines {
    /// Prints the label. `each_step` says whether each step has a line of its own.
    pub fn new(label: &str, total_updates: u64, scores: &[Score], each_step: bool) -> Self {
        say(label);
        let scores = scores.iter().map(|score| score.name).collect();
        let pause = if each_step { Duration::ZERO } else { PAUSE };
        Self { total_updates, scores, pause, ..Self::default() }
    }

    /// Adds a step, and returns the latest value of each reading.
    fn add(&mut self, numbers: &StepNumbers) -> [Reading; 16] {
        let mut latest = of_step(numbers);
        for (reading, before) in latest.iter_mut().zip(self.latest.iter().flatten()) {
            reading.value = reading.value.filter(|value| value.is_finite()).or(before.value);
        }
        self.pace.step(numbers);
        if let Some(speed) = self.pace.tokens_per_second() {
            let proportional = ["Tokens per second", PER_DEVICE, MFU];
            for reading in latest.iter_mut().filter(|reading| proportional.contains(&reading.name)) {
                let share = reading.value.map(|value| value / numbers.tokens_per_second);
                reading.value = share.filter(|share| share.is_finite()).map(|share| share * speed);
            }
        }
        *self.latest.insert(latest)
    }
}

impl Observer for Lines {
    fn step(&mut self, numbers: &StepNumbers) {
        let latest = self.add(numbers);
        if self.last_line.is_none_or(|last| last.elapsed() >= self.pause) {
            self.last_line = Some(Instant::now());
            let line = step_line(numbers.step, Some(self.total_updates), &latest);
            let left = self.pace.left(self.total_updates.saturating_sub(numbers.step));
            let left = left.map(|seconds| format!("  left {}", duration(seconds.round().max(1.0))));
            say(&(line + &left.unwrap_or_default()));
        }
    }

    fn evaluating(&mut self, progress: &EvaluationProgress) {
        let begun = *self.evaluating.get_or_insert_with(Instant::now);
        if begun.elapsed() >= LONG && progress.done < progress.samples {
            self.evaluating = Some(Instant::now() + self.pause.saturating_sub(LONG));
            say(&evaluating_line(progress));
        }
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        self.evaluating = None;
        self.pace.evaluated(numbers);
        let scores = self.scores.iter().filter_map(|name| Some((*name, *numbers.scores.get(*name)?)));
        say(&valid_line(numbers, Some(self.total_updates), scores));
    }
}

/// Prints a line.
pub(crate) fn say(line: &str) {
    // A closed pipe does not end a training run.
    let _ = writeln!(io::stderr(), "{}", plain(line));
}

/// Formats a step as a line: updates made, the total if it is known, and the finite readings.
pub fn step_line(done: u64, total: Option<u64>, readings: &[Reading]) -> String {
    let mut line = format!("step {done:>6}{}", of(total));
    let value = |reading: &Reading| reading.value.filter(|value| value.is_finite());
    for reading in readings {
        let (name, Some(value)) = (reading.name, value(reading)) else { continue };
        let short = match name {
            "Learning rate" => "lr",
            "Gradient norm" => "norm",
            LOSS_SCALE => "scale",
            "Tokens per second" => "tok/s",
            PER_DEVICE => "tok/s/device",
            MFU => "mfu",
            "Skipped steps" => "skipped",
            // 0 bytes of memory means that nothing counts bytes. To keep the line short, it has only two of the sizes.
            "Memory" if value > 0.0 => "memory",
            "Activations" if value > 0.0 => "activations",
            name if BYTES.contains(&name) => continue,
            // Printed below, if a rank is slow.
            WAITING | SLOWEST => continue,
            _ => "loss",
        };
        line += &format!("  {short} {}", format_reading(name, value));
    }
    let named = |name: &str| readings.iter().find(|reading| reading.name == name).and_then(value);
    if let (Some(share), Some(rank)) = (named(WAITING).filter(|share| *share > SLOW), named(SLOWEST)) {
        let share = format_reading(WAITING, share);
        line += &format!("  rank {rank} is slow: another waits for it {share} of the time");
    }
    line
}

/// Formats the progress of an evaluation as a line.
fn evaluating_line(progress: &EvaluationProgress) -> String {
    let EvaluationProgress { done, samples, .. } = progress;
    let share = 100.0 * *done as f64 / (*samples).max(1) as f64;
    format!("evaluating {done} of {}, {share:.0}%", counted(*samples, "sample"))
}

/// Formats an evaluation as a line: updates made, the total if it is known, the loss, and these scores by name.
pub fn valid_line<'a>(
    numbers: &EvaluationNumbers,
    total: Option<u64>,
    scores: impl Iterator<Item = (&'a str, f64)>,
) -> String {
    let line = format!("valid {:>5}{}  loss {:.4}", numbers.step, of(total), numbers.loss);
    scores.fold(line, |line, (name, score)| line + &format!("  {name} {score:.4}"))
}

fn of(total: Option<u64>) -> String {
    total.map(|total| format!("/{total}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_others_wait_for_is_told_where_it_costs() {
        let line = |waited| {
            let step = StepNumbers { slowest_rank: Some(3), waited_seconds: Some(waited), ..numbers(1.5) };
            step_line(0, Some(10), &of_step(&step))
        };
        let start = "step      0/10  loss 1.5000  lr 0.00e0  norm 0.0000  tok/s 0  skipped 0";
        assert_eq!(line(0.12), start);
        assert_eq!(line(0.412), format!("{start}  rank 3 is slow: another waits for it 41% of the time"));
    }

    #[test]
    fn the_speed_of_each_device_and_its_utilization_follow_the_speed() {
        let step =
            StepNumbers { tokens_per_second_per_device: Some(20500.0), mfu: Some(0.41234), ..numbers(1.5) };
        let line = step_line(1, None, &of_step(&step));
        assert!(line.contains("tok/s 0  tok/s/device 20.5k  mfu 41.2%  skipped 0"), "{line}");
    }

    #[test]
    fn a_step_without_a_loss_shows_the_one_before() {
        let mut lines = Lines { total_updates: 9, ..Lines::default() };
        lines.add(&numbers(1.5));
        let skipped = StepNumbers { skipped: Some("overflow".into()), skipped_steps: 1, ..numbers(7.0) };
        let latest = lines.add(&skipped);
        assert!(step_line(1, None, &latest).starts_with("step      1  loss 1.5000"));
        assert!(step_line(1, None, &latest).ends_with("skipped 1"));
        let latest = lines.add(&numbers(f64::NAN));
        assert!(step_line(2, None, &latest).contains("loss 1.5000"));
    }

    #[test]
    fn an_evaluation_says_how_far_it_is() {
        let progress = EvaluationProgress { done: 250, samples: 1000, ..Default::default() };
        assert_eq!(evaluating_line(&progress), "evaluating 250 of 1000 samples, 25%");
    }

    fn numbers(loss: f64) -> StepNumbers {
        StepNumbers { loss, seconds: 1.0, ..StepNumbers::default() }
    }
}
