//! Faults where no error can be returned.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::StrategyError;

/// The first fault of a run in a place that cannot return an error: in a model's forward pass, in a step of a backward pass,
/// or when a lazy parameter is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Option<StrategyError>>>);

impl Faults {
    /// Keeps this fault, unless there is an earlier one.
    pub fn report(&self, fault: StrategyError) {
        self.first().get_or_insert(fault);
    }

    /// Returns the fault as an error, once.
    pub fn check(&self) -> Result<(), StrategyError> {
        self.first().take().map_or(Ok(()), Err)
    }

    fn first(&self) -> MutexGuard<'_, Option<StrategyError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
