//! Prints progress as plain lines on standard error, for logs, pipes and terminals without a dashboard: before the first
//! step, while a GPU's kernels are compiled and tuned, and then with the speed and the time left.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use firebrick_datasets::counted;

use crate::Score;
use crate::device::kernels::{self, CompiledKernels};
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::plain_text::plain;
use crate::observe::readings::{
    BYTES, LOSS_SCALE, MFU, PER_DEVICE, Reading, SLOWEST, WAITING, duration, format_reading, of_step,
};

/// The share of a step, in percent, from which a line mentions a rank that others wait for.
const SLOW: f64 = 20.0;

/// Time between two lines before the first step and of training. Evaluations always print a line.
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

/// The first steps, in which memory is allocated and kernels are compiled and tuned: they do not count.
const FIRST: usize = 2;

/// The number of steps whose mean is the speed.
const RECENT: usize = 50;

/// The speed over the last steps, and the time that evaluations take.
#[derive(Clone, Debug, Default)]
struct Pace {
    /// Steps of this process.
    steps: usize,
    /// Seconds and tokens of the last steps.
    recent: VecDeque<(f64, usize)>,
    /// Updates of this process.
    updates: u64,
    /// Seconds of all evaluations of this process.
    evaluation_seconds: f64,
    /// Updates up to the last evaluation.
    evaluated: u64,
}

impl Pace {
    pub fn step(&mut self, numbers: &StepNumbers) {
        self.steps += 1;
        self.updates += u64::from(numbers.skipped.is_none());
        if self.steps <= FIRST || !numbers.seconds.is_finite() {
            return;
        }
        self.recent.push_back((numbers.seconds, numbers.tokens));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    pub fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        self.evaluation_seconds += numbers.seconds;
        self.evaluated = self.updates;
    }

    /// Returns the tokens per second of the last steps, without evaluations. `None` during the first steps.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let (seconds, tokens) =
            self.recent.iter().fold((0.0, 0), |(seconds, tokens), step| (seconds + step.0, tokens + step.1));
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    }

    /// Returns the seconds that so many updates will take, with evaluations as often and as long as before. `None`
    /// during the first steps, and if there are no updates left.
    pub fn left(&self, updates: u64) -> Option<f64> {
        if self.recent.is_empty() || updates == 0 {
            return None;
        }
        let step = self.recent.iter().map(|step| step.0).sum::<f64>() / self.recent.len() as f64;
        let evaluation = match self.evaluated {
            0 => 0.0,
            updates => self.evaluation_seconds / updates as f64,
        };
        Some(updates as f64 * (step + evaluation))
    }
}

/// Prints a line every five seconds until the first step. Prints nothing if that comes earlier.
pub(crate) struct FirstStep {
    /// The lines end when it is dropped.
    waits: Option<Sender<()>>,
}

impl FirstStep {
    pub fn awaited() -> Self {
        Self::telling(PAUSE, kernels::compiled, say)
    }

    fn telling(
        pause: Duration,
        compiled: impl Fn() -> Option<CompiledKernels> + Send + 'static,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let (waits, step) = channel::<()>();
        thread::spawn(move || {
            let (begun, before) = (Instant::now(), compiled());
            while step.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                tell(&first_step_line(begun.elapsed().as_secs(), before, compiled()));
            }
        });
        Self { waits: Some(waits) }
    }
}

impl Observer for FirstStep {
    fn step(&mut self, _: &StepNumbers) {
        self.waits = None;
    }
}

/// Formats what was compiled and tuned since the wait began. Nothing is counted where kernels are not kept.
fn first_step_line(seconds: u64, before: Option<CompiledKernels>, now: Option<CompiledKernels>) -> String {
    match before.zip(now) {
        None => format!("before the first step: compiling and tuning kernels, {seconds} s so far"),
        Some((before, now)) if before == now => format!("before the first step: {seconds} s so far"),
        Some((before, now)) => format!(
            "before the first step: {} compiled, {} tuned, {seconds} s so far",
            counted(now.kernels.saturating_sub(before.kernels), "kernel"),
            counted(now.tuned.saturating_sub(before.tuned), "operation")
        ),
    }
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

    fn step(seconds: f64) -> StepNumbers {
        StepNumbers { seconds, tokens: 100, ..StepNumbers::default() }
    }

    #[test]
    fn the_first_steps_do_not_count_and_neither_do_old_ones() {
        let mut pace = Pace::default();
        for seconds in [60.0, 30.0] {
            pace.step(&step(seconds));
            assert_eq!((pace.tokens_per_second(), pace.left(10)), (None, None));
        }
        pace.step(&step(0.5));
        pace.step(&step(1.5));
        assert_eq!((pace.tokens_per_second(), pace.left(10)), (Some(100.0), Some(10.0)));
        (0..RECENT).for_each(|_| pace.step(&step(2.0)));
        assert_eq!((pace.tokens_per_second(), pace.left(10), pace.left(0)), (Some(50.0), Some(20.0), None));
    }

    #[test]
    fn evaluations_take_time_too() {
        let mut pace = Pace::default();
        (0..4).for_each(|_| pace.step(&step(1.0)));
        pace.evaluated(&EvaluationNumbers { seconds: 8.0, ..Default::default() });
        assert_eq!(pace.left(10), Some(10.0 * (1.0 + 8.0 / 4.0)));
        // The next evaluation is as far away as this one was from the start.
        (0..2).for_each(|_| pace.step(&step(1.0)));
        assert_eq!(pace.left(10), Some(30.0));
        assert_eq!(pace.tokens_per_second(), Some(100.0));
    }

    #[test]
    fn a_line_has_what_was_compiled_since_the_wait_began() {
        let compiled = |kernels, tuned| Some(CompiledKernels { kernels, tuned });
        assert_eq!(
            first_step_line(5, None, None),
            "before the first step: compiling and tuning kernels, 5 s so far"
        );
        assert_eq!(first_step_line(5, compiled(9, 2), compiled(9, 2)), "before the first step: 5 s so far");
        let both = first_step_line(45, compiled(9, 2), compiled(129, 16));
        assert_eq!(both, "before the first step: 120 kernels compiled, 14 operations tuned, 45 s so far");
    }

    #[test]
    fn lines_end_with_the_first_step() {
        let (sender, lines) = channel();
        let tell = move |line: &str| drop(sender.send(line.to_string()));
        let mut first = FirstStep::telling(Duration::from_millis(1), || None, tell);
        assert!(lines.recv().unwrap().starts_with("before the first step"));
        first.step(&StepNumbers::default());
        // This ends when the thread does.
        lines.iter().for_each(drop);
    }
}
