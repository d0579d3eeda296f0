//! Work of a rank that one thread does, piece by piece.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A piece of work.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The work that a rank has begun and that one thread does, in the order in which it begins. All ranks begin it in the
/// same order, so that none waits for work behind its own.
#[derive(Clone, Default)]
pub(crate) struct Queue(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Whether a thread takes them.
    is_attended: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work, behind what waits already.
    pub fn push(&self, job: Job) {
        let mut waiting = self.lock();
        waiting.jobs.push_back(job);
        if !std::mem::replace(&mut waiting.is_attended, true) {
            let queue = self.clone();
            thread::spawn(move || {
                while let Some(job) = queue.next() {
                    // What panics has told the other ranks.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            });
        }
    }

    fn next(&self) -> Option<Job> {
        let mut waiting = self.lock();
        let next = waiting.jobs.pop_front();
        waiting.is_attended = next.is_some();
        next
    }
}
