//! Prints lines until the first step, while a GPU's kernels are compiled and tuned.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use firebrick_datasets::counted;

use crate::device::kernels::{self, Compiled};
use crate::observe::lines::say;
use crate::observe::numbers::StepNumbers;
use crate::observe::observer::Observer;

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(5);

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
        compiled: impl Fn() -> Option<Compiled> + Send + 'static,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let (waits, step) = channel::<()>();
        thread::spawn(move || {
            let (begun, before) = (Instant::now(), compiled());
            while step.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                tell(&line(begun.elapsed().as_secs(), before, compiled()));
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
fn line(seconds: u64, before: Option<Compiled>, now: Option<Compiled>) -> String {
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
    fn a_line_has_what_was_compiled_since_the_wait_began() {
        let compiled = |kernels, tuned| Some(Compiled { kernels, tuned });
        assert_eq!(line(5, None, None), "before the first step: compiling and tuning kernels, 5 s so far");
        assert_eq!(line(5, compiled(9, 2), compiled(9, 2)), "before the first step: 5 s so far");
        let both = line(45, compiled(9, 2), compiled(129, 16));
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
