//! Following a run from a program.

use crate::FailedWrites;
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, Round, SaveNumbers, StepNumbers};
use crate::observe::report::Report;
use crate::observe::timeline::StepTimeline;

/// Follows a run: sees its steps, evaluations and saves, and its end. Pass it to
/// [`Trainer::observe`](crate::Trainer::observe). The log, the dashboard and the files of a run are observers too.
///
/// A round is started, makes steps, is trained, and is evaluated if the run has validation data.
///
/// An observer runs on the thread that trains, of the first rank, between two steps: keep it short, or hand the numbers
/// to a thread of your own. A closure that takes the [numbers of a step](StepNumbers) is an observer.
///
/// ```
/// # use burn::tensor::Device;
/// # use firebrick::*;
/// # use firebrick::datasets::Windows;
/// # use firebrick::optim::AdamW;
/// # use firebrick_models::GptConfig;
/// use std::sync::mpsc::{Sender, channel};
///
/// /// Sends each validation loss.
/// struct Losses(Sender<f64>);
///
/// impl Observer for Losses {
///     fn evaluated(&mut self, numbers: &EvaluationNumbers) {
///         let _ = self.0.send(numbers.loss);
///     }
/// }
///
/// # let rows = || Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8).unwrap();
/// # let data = Data::new(rows()).valid(rows());
/// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// # let model = config.init(7, 8, &Device::flex().autodiff());
/// let (sender, losses) = channel();
/// let trainer = Trainer::new().steps(4).evaluate_every(2).observe(Losses(sender));
/// trainer.fit(model, AdamW::new().init()?, Schedule::constant(1e-3), data)?;
/// assert_eq!(losses.iter().count(), 2);
/// # Ok::<(), TrainError>(())
/// ```
pub trait Observer: Send {
    /// Receives the start of each round.
    fn round_started(&mut self, round: &Round) {
        let _ = round;
    }

    /// Receives the numbers of each step, in order. A step that made no update says
    /// [why](StepNumbers::skipped).
    fn step(&mut self, numbers: &StepNumbers) {
        let _ = numbers;
    }

    /// Receives the timeline of each step that the trainer [records](crate::Trainer::timeline), before its numbers.
    fn timeline(&mut self, timeline: &StepTimeline) {
        let _ = timeline;
    }

    /// Called after the last step of a round, and where an interruption ends it early.
    fn round_trained(&mut self) {}

    /// Receives the progress of an evaluation, after each of its batches.
    fn evaluating(&mut self, progress: &EvaluationProgress) {
        let _ = progress;
    }

    /// Receives the result of each evaluation.
    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        let _ = numbers;
    }

    /// Receives each save when it has ended, well or with an error. A save runs beside the training, so steps after it
    /// may come first.
    fn saved(&mut self, numbers: &SaveNumbers) {
        let _ = numbers;
    }

    /// Called before a checkpoint and at the end of the training: write now what you hold back, so that your files
    /// cover the checkpoint.
    fn flush(&mut self) {}

    /// Returns the files with a failed write, for the [report](Report::failed_writes).
    fn failed_writes(&self) -> Vec<FailedWrites> {
        Vec::new()
    }

    /// Receives the report of a run that has ended without an error.
    fn ended(&mut self, report: &Report) {
        let _ = report;
    }
}

impl<F: FnMut(&StepNumbers) + Send> Observer for F {
    fn step(&mut self, numbers: &StepNumbers) {
        self(numbers);
    }
}
