//! The observers of a run: its log, what it shows and writes besides, and those of the program.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::FailedWrites;
use crate::accounting::ParameterBytes;
use crate::observe::log::{Log, Past};
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, Round, SaveNumbers, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::progress::Progress;
use crate::observe::rank_report::RankReport;
use crate::observe::report::{Report, median, process_start};
use crate::observe::timeline::StepTimeline;

/// The program's observers, shared by clones of a trainer.
#[derive(Clone, Default)]
pub(crate) struct SharedObservers(Vec<Arc<Mutex<dyn Observer>>>);

impl SharedObservers {
    pub fn add(&mut self, observer: impl Observer + 'static) {
        self.0.push(Arc::new(Mutex::new(observer)));
    }
}

impl Debug for SharedObservers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

/// Everything that follows a rank.
pub(crate) struct Observers {
    /// The log, to which checkpoints refer.
    pub log: Log,
    /// What the report is made from.
    pub tally: Tally,
    /// The run's own observers, until its training ends.
    own: Vec<Box<dyn Observer>>,
    program: SharedObservers,
}

impl Observers {
    pub fn new(log: Log, tally: Tally, program: SharedObservers) -> Self {
        Self { log, tally, own: Vec::new(), program }
    }

    /// Adds an observer of the run itself.
    pub fn add(&mut self, observer: impl Observer + 'static) {
        self.own.push(Box::new(observer));
    }

    /// Drops the run's own observers once the training has ended, so that the dashboard leaves the screen.
    pub fn close(&mut self) {
        self.own.clear();
    }

    fn each(&mut self, mut see: impl FnMut(&mut dyn Observer)) {
        see(&mut self.tally);
        see(&mut self.log);
        self.own.iter_mut().for_each(|observer| see(observer.as_mut()));
        for observer in &self.program.0 {
            see(&mut *observer.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Observer for Observers {
    fn round_started(&mut self, round: &Round) {
        self.each(|observer| observer.round_started(round));
    }

    fn step(&mut self, numbers: &StepNumbers) {
        self.each(|observer| observer.step(numbers));
    }

    fn timeline(&mut self, timeline: &StepTimeline) {
        self.each(|observer| observer.timeline(timeline));
    }

    fn round_trained(&mut self) {
        self.each(|observer| observer.round_trained());
    }

    fn evaluating(&mut self, progress: &EvaluationProgress) {
        self.each(|observer| observer.evaluating(progress));
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        self.each(|observer| observer.evaluated(numbers));
    }

    fn saved(&mut self, numbers: &SaveNumbers) {
        self.each(|observer| observer.saved(numbers));
    }

    fn flush(&mut self) {
        self.each(|observer| observer.flush());
    }

    fn failed_writes(&self) -> Vec<FailedWrites> {
        let own = self.own.iter().flat_map(|observer| observer.failed_writes());
        let program = self.program.0.iter().flat_map(|observer| {
            let observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
            observer.failed_writes()
        });
        self.log.failed_writes().into_iter().chain(own).chain(program).collect()
    }

    fn ended(&mut self, report: &Report) {
        self.each(|observer| observer.ended(report));
    }
}

/// The observer that adds up the steps and saves of a run for its report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// The last step.
    pub last: StepNumbers,
    tokens: usize,
    step_seconds: Vec<f64>,
    pub peak_bytes: usize,
    activation_bytes: usize,
    /// When this process had made its first step.
    first_step: Option<Instant>,
    /// Whether this process made an update or an evaluation.
    pub has_gone_on: bool,
    /// Updates made at the newest checkpoint of this process.
    saved_step: Option<u64>,
    /// Why the last save failed, if it did.
    save_error: Option<String>,
}

impl Tally {
    /// Rebuilds the sums of a resumed run after `updates` updates, from its log.
    pub fn going_on(updates: u64, past: Past) -> Self {
        let Past { tokens, step_seconds, peak_bytes, activation_bytes, last, .. } = past;
        let last = last.unwrap_or_default();
        let last = StepNumbers {
            step: updates,
            gradient_norm: Some(last.gradient_norm).filter(|norm| norm.is_finite()).unwrap_or_default(),
            loss_scale: last.loss_scale,
            ..StepNumbers::default()
        };
        Self { last, tokens, step_seconds, peak_bytes, activation_bytes, ..Self::default() }
    }

    /// Whether this process has not made a step yet.
    pub fn is_first_step(&self) -> bool {
        self.first_step.is_none()
    }

    /// Builds the report of the run, without what only its loop knows.
    pub fn report(&self, progress: &Progress, bytes: ParameterBytes, ranks: Vec<RankReport>) -> Report {
        let seconds: f64 = self.step_seconds.iter().sum();
        let first = self.first_step.map(|at| at.duration_since(process_start()));
        Report {
            steps: self.last.step,
            train_loss: progress.recent_loss(),
            valid_loss: progress.validation.as_ref().map(|valid| valid.loss),
            valid_scores: progress.validation.as_ref().map(|valid| valid.scores.clone()).unwrap_or_default(),
            best_valid_loss: progress.best.as_ref().map(|best| best.loss),
            best_valid_scores: progress.best.as_ref().map(|best| best.scores.clone()).unwrap_or_default(),
            best_step: progress.best.as_ref().map(|best| best.step),
            tokens_per_second: self.tokens as f64 / seconds.max(f64::MIN_POSITIVE),
            step_seconds_median: median(&self.step_seconds),
            skipped_steps: progress.skipped,
            gradient_norm: self.last.gradient_norm,
            loss_scale: self.last.loss_scale,
            parameters: bytes.parameters,
            master_bytes: bytes.master,
            replica_bytes: bytes.replica,
            averaged_bytes: bytes.averaged,
            host_bytes: bytes.by_place().0,
            gradient_bytes: bytes.gradients,
            optimizer_bytes: bytes.optimizer,
            disk: bytes.disk,
            activation_bytes: self.activation_bytes,
            peak_bytes: self.peak_bytes,
            wall_seconds: process_start().elapsed().as_secs_f64(),
            first_step_seconds: first.unwrap_or_default().as_secs_f64(),
            checkpoint_step: self.saved_step,
            checkpoint_error: self.save_error.clone(),
            ranks,
            ..Report::default()
        }
    }
}

impl Observer for Tally {
    fn step(&mut self, numbers: &StepNumbers) {
        self.first_step.get_or_insert_with(Instant::now);
        self.has_gone_on |= numbers.skipped.is_none();
        self.peak_bytes = self.peak_bytes.max(numbers.peak_bytes);
        self.activation_bytes = self.activation_bytes.max(numbers.activation_bytes);
        self.tokens += numbers.tokens;
        self.step_seconds.push(numbers.seconds);
        self.last = numbers.clone();
    }

    fn evaluated(&mut self, _: &EvaluationNumbers) {
        self.has_gone_on = true;
    }

    fn saved(&mut self, numbers: &SaveNumbers) {
        self.save_error = numbers.error.clone();
        if numbers.error.is_none() {
            self.saved_step = Some(numbers.step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_that_succeeds_at_the_second_attempt_leaves_no_error() {
        let mut tally = Tally::default();
        let reported = |tally: &Tally| {
            let report = tally.report(&Progress::default(), ParameterBytes::default(), Vec::new());
            (report.checkpoint_step, report.checkpoint_error)
        };
        let ended = |step, error: Option<&str>| SaveNumbers {
            step,
            error: error.map(String::from),
            ..SaveNumbers::default()
        };
        tally.saved(&ended(10, None));
        tally.saved(&ended(20, Some("disk full")));
        assert_eq!(reported(&tally), (Some(10), Some("disk full".into())));
        tally.saved(&ended(20, None));
        assert_eq!(reported(&tally), (Some(20), None));
        assert!(!tally.has_gone_on && tally.is_first_step());
    }
}
