//! The observers of a run: its log, what it shows and writes besides, and those of the program.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, PoisonError};

use crate::FailedWrites;
use crate::observe::log::Log;
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, Round, SaveNumbers, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::report::Report;
use crate::observe::tally::Tally;
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
