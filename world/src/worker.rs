//! Threads that do pieces of work for a rank while the rank goes on.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use burn::tensor::StreamId;

use crate::WorldError;
use crate::seat::Seat;

/// A piece of work.
type Job = Box<dyn FnOnce() + Send>;

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

    fn push(&self, job: Job) {
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

/// Starts the work on a thread of its own, and returns where its result arrives. What the work does on a device is in
/// this thread's stream: a stream of its own would hold its own memory.
///
/// If the work panics, nothing arrives, and the other ranks get an error that says what it was `doing`.
pub(crate) fn start<T: Send + 'static>(
    seat: &Arc<Seat>,
    doing: &'static str,
    work: impl FnOnce() -> Result<T, WorldError> + Send + 'static,
) -> Receiver<Result<T, WorldError>> {
    let (job, handed_over) = job(seat, doing, work);
    thread::spawn(job);
    handed_over
}

/// Like [`start`], behind the work that the rank has queued before, on the same thread: a rank may begin hundreds of
/// gathers at once.
pub(crate) fn queue<T: Send + 'static>(
    seat: &Arc<Seat>,
    doing: &'static str,
    work: impl FnOnce() -> Result<T, WorldError> + Send + 'static,
) -> Receiver<Result<T, WorldError>> {
    let (job, handed_over) = job(seat, doing, work);
    seat.queue.push(job);
    handed_over
}

fn job<T: Send + 'static>(
    seat: &Arc<Seat>,
    doing: &'static str,
    work: impl FnOnce() -> Result<T, WorldError> + Send + 'static,
) -> (Job, Receiver<Result<T, WorldError>>) {
    let (hand_over, handed_over) = channel();
    let (around, seat, stream) = (seat.around.get().cloned(), seat.clone(), StreamId::current());
    let job = move || {
        let mut work = Some(move || match catch_unwind(AssertUnwindSafe(|| stream.executes(work))) {
            // If nobody listens any more, the rank has given the call up.
            Ok(result) => drop(hand_over.send(result)),
            Err(panic) => seat.fail(&format!("{doing}: {}", message(&*panic))),
        });
        let mut once = || {
            if let Some(work) = work.take() {
                work();
            }
        };
        match around {
            Some(around) => around(&mut once),
            None => once(),
        }
    };
    (Box::new(job), handed_over)
}

/// Returns a panic's message.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}
