//! Background work on a thread, while training continues.
//!
//! Checkpoints and the best model are written in this way: the run hands over a copy, checks at its step boundaries
//! whether the thread is done, and then receives the result.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

/// A thread at work.
pub(crate) struct Beside<T>(JoinHandle<T>);

impl<T: Send + 'static> Beside<T> {
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(thread::spawn(work))
    }

    /// Returns whether [`wait`](Self::wait) would return at once.
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until the thread ends. Returns the result of the work, or `None` if the thread panicked.
    pub fn end(self) -> Option<T> {
        self.0.join().ok()
    }

    /// Waits for the result of the work. Resumes a panic of the thread.
    pub fn wait(self) -> T {
        self.0.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}
