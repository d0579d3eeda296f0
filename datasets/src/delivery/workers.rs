//! Threads that compute batches ahead.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{Builder, JoinHandle},
};

use crate::{Batches, DataError, Request, SampleError, panics::caught};

/// Threads that take requests from a shared queue. Dropping it stops them and waits for them.
pub(crate) struct Workers<B: Batches> {
    threads: Vec<JoinHandle<()>>,
    /// `None` to end the threads.
    queue: Option<Sender<Job<B>>>,
    stop: Arc<AtomicBool>,
}

/// A request, and the channel for its batch.
struct Job<B: Batches> {
    request: Request,
    reply: Sender<Result<B::Batch, DataError>>,
}

impl<B: Batches> Workers<B> {
    /// Starts up to `count` threads; fewer if the system refuses to start one.
    pub(crate) fn start(batches: &Arc<B>, count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let threads = (0..count)
            .map_while(|_| {
                let (batches, stop) = (Arc::clone(batches), Arc::clone(&stop));
                let receiver = Arc::clone(&receiver);
                Builder::new()
                    .name("prefetch".to_owned())
                    .spawn(move || work(&*batches, &receiver, &stop))
                    .ok()
            })
            .collect();
        Self { threads, queue: Some(sender), stop }
    }

    /// Returns whether there are no threads.
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Queues a request. Its batch arrives at the receiver; if no thread is left to compute it, the receiver is closed.
    pub(crate) fn compute(&self, request: Request) -> Receiver<Result<B::Batch, DataError>> {
        let (reply, receiver) = channel();
        if let Some(queue) = &self.queue {
            // A job that cannot be sent is dropped, which closes the receiver.
            let _ = queue.send(Job { request, reply });
        }
        receiver
    }
}

impl<B: Batches> Drop for Workers<B> {
    fn drop(&mut self) {
        // Without the flag, the threads would finish the queue before they see that it is closed.
        self.stop.store(true, Ordering::Relaxed);
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked closed its receiver, so the panic was already reported.
            let _ = thread.join();
        }
    }
}

/// Runs a thread until the queue is closed.
fn work<B: Batches>(batches: &B, queue: &Mutex<Receiver<Job<B>>>, stop: &AtomicBool) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { request, reply }) = job else {
            return;
        };
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // If the iterator was dropped in the meantime, nobody receives the batch.
        let _ = reply.send(compute(batches, &request));
    }
}

/// Computes the batch of a request; a panic becomes an error.
pub(crate) fn compute<B: Batches>(batches: &B, request: &Request) -> Result<B::Batch, DataError> {
    caught(|| batches.batch(request.epoch, request.positions.clone()))
        .unwrap_or_else(|message| Err(panicked(request, message)))
}

/// Creates the error for a request whose computation panicked.
pub(crate) fn panicked(request: &Request, message: String) -> DataError {
    DataError::Sample(SampleError::BatchPanicked {
        epoch: request.epoch,
        positions: request.positions.clone(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use std::{ops::Range, sync::Barrier};

    use super::*;
    use crate::TokenBatch;

    /// A data set that finishes a batch only while another is computed at the same time.
    struct Together(Barrier);

    impl Batches for Together {
        type Batch = TokenBatch;

        fn samples(&self, _: u64) -> usize {
            4
        }

        fn batch(&self, _: u64, _: Range<usize>) -> Result<TokenBatch, DataError> {
            self.0.wait();
            TokenBatch::from_rows(vec![], 0)
        }
    }

    #[test]
    fn threads_work_at_once() {
        let workers = Workers::start(&Arc::new(Together(Barrier::new(2))), 2);
        let request = |position| Request { epoch: 0, positions: position..position + 1, closes_window: None };
        let replies: Vec<_> = (0..4).map(|at| workers.compute(request(at))).collect();
        assert!(replies.iter().all(|reply| reply.recv().unwrap().is_ok()));
    }

    #[test]
    fn without_threads_no_batch_arrives() {
        let workers = Workers::start(&Arc::new(Together(Barrier::new(1))), 0);
        assert!(workers.is_empty());
        let request = Request { epoch: 0, positions: 0..1, closes_window: None };
        assert!(workers.compute(request).recv().is_err());
    }
}
