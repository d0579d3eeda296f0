//! The observers of a run: its log, and those of the program.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, PoisonError};

use crate::observe::log::Log;
use crate::observe::numbers::{EvaluationNumbers, SaveNumbers, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::report::Report;

/// The program's observers, shared by clones of a trainer.
#[derive(Clone, Default)]
pub(crate) struct SharedObservers(Vec<Arc<Mutex<dyn Observer>>>);

impl SharedObservers {
    pub fn add(&mut self, observer: impl Observer + 'static) {
        self.0.push(Arc::new(Mutex::new(observer)));
    }

    fn each(&self, mut see: impl FnMut(&mut dyn Observer)) {
        for observer in &self.0 {
            see(&mut *observer.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Debug for SharedObservers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

/// Everything that follows a rank: the log, which checkpoints refer to, and the program's observers.
pub(crate) struct Observers {
    pub log: Log,
    shared: SharedObservers,
}

impl Observers {
    pub fn new(log: Log, shared: SharedObservers) -> Self {
        Self { log, shared }
    }
}

impl Observer for Observers {
    fn step(&mut self, numbers: &StepNumbers) {
        self.log.step(numbers);
        self.shared.each(|observer| observer.step(numbers));
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        self.log.evaluation(numbers);
        self.shared.each(|observer| observer.evaluated(numbers));
    }

    fn saved(&mut self, numbers: &SaveNumbers) {
        self.log.save(numbers);
        self.shared.each(|observer| observer.saved(numbers));
    }

    fn ended(&mut self, report: &Report) {
        self.shared.each(|observer| observer.ended(report));
    }
}
