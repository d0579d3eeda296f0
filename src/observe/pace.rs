//! The speed of a run, and the time left.

use std::collections::VecDeque;

use crate::observe::numbers::{EvaluationNumbers, StepNumbers};

/// The first steps, in which memory is allocated and kernels are compiled and tuned: they do not count.
const FIRST: usize = 2;

/// The number of steps whose mean is the speed.
const RECENT: usize = 50;

/// The speed over the last steps, and the time that evaluations take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
