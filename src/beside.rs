//! Work of a thread beside the training, which goes on meanwhile.
//!
//! Checkpoints and the best model are written so: the run hands over a copy, looks at its step boundaries whether the
//! thread is done, and hears then how it went.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

/// A thread at work.
pub(crate) struct Beside<T>(JoinHandle<T>);

impl<T: Send + 'static> Beside<T> {
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(thread::spawn(work))
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until the thread has ended, however it does.
    pub fn end(self) {
        let _ = self.0.join();
    }

    /// What the work has come to. A panic in it goes on here.
    pub fn wait(self) -> T {
        self.0.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}
