//! Threads that do pieces of work for a rank while the rank goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use burn::tensor::StreamId;

use crate::WorldError;
use crate::queue::Job;
use crate::seat::Seat;

/// Starts the work on a thread of its own, and returns where its result arrives. What the work does on a device is in
/// this thread's stream: a stream of its own would hold its own memory. It must therefore hold no tensor that this thread
/// holds too, but those of a [`Handover`](firebrick_kernels::Handover).
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
    let (seat, fails, stream) = (seat.clone(), seat.clone(), StreamId::current());
    let job = move || {
        let mut work = Some(move || match catch_unwind(AssertUnwindSafe(|| stream.executes(work))) {
            // If nobody listens any more, the rank has given the call up.
            Ok(result) => drop(hand_over.send(result)),
            Err(panic) => fails.fail(&format!("{doing}: {}", message(&*panic))),
        });
        seat.within(&mut || {
            if let Some(work) = work.take() {
                work();
            }
        });
    };
    (Box::new(job), handed_over)
}

/// Returns a panic's message.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}
