//! Computes batches ahead of the trainer, in threads.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{Builder, JoinHandle},
};

use crate::panics::caught;
use crate::{Batches, DataError, Request, SampleError};

/// Yields batches in the order of their requests, computed ahead by worker threads.
///
/// The number of workers changes only the time it takes. An error or a panic surfaces exactly at its request, and the
/// batches after it follow. Dropping the iterator stops the workers and waits for them; each finishes at most its
/// current batch.
///
/// The requests may be endless. They are pulled on the caller's thread, each at most `ahead` requests before its batch
/// is delivered.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
/// use firebrick_datasets::{Amount, Batch, Cursor, Cut, Prefetch, Requests, Windows};
///
/// let windows = Arc::new(Windows::new(vec![7; 100], 10)?.shuffled(42));
/// let cut = Cut::new(Amount::Samples(4), Amount::Samples(2))?;
/// let requests = Requests::new(Arc::clone(&windows), Cursor::default(), cut);
///
/// for delivered in Prefetch::new(windows, requests, 2, 4).take(6) {
///     let (request, batch) = delivered?;
///     assert_eq!(batch.samples(), request.positions.len());
///     if let Some(cursor) = request.ends_step {
///         // Step the optimizer. A checkpoint saved here resumes at `cursor`.
///     }
/// }
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
pub struct Prefetch<B: Batches> {
    batches: Arc<B>,
    requests: Box<dyn Iterator<Item = Result<Request, DataError>> + Send>,
    ahead: usize,
    /// The batches under way, in the order of delivery. Its length limits the memory.
    pending: VecDeque<Result<Pending<B>, DataError>>,
    workers: Workers<B>,
}

/// A request, and the channel on which its batch arrives.
struct Pending<B: Batches> {
    request: Request,
    reply: Receiver<Result<B::Batch, DataError>>,
}

impl<B: Batches> Prefetch<B> {
    /// Starts `workers` threads, which compute up to `ahead` batches in addition to the last one delivered.
    ///
    /// With 0 workers, each batch is computed on the caller's thread when it is requested. With workers, an `ahead` of
    /// 0 counts as 1, and an `ahead` below `workers` leaves some of them idle. If the system refuses to start a thread,
    /// the others do its work.
    ///
    /// An error among the `requests` surfaces in its place.
    pub fn new(
        batches: B,
        requests: impl Iterator<Item = Result<Request, DataError>> + Send + 'static,
        workers: usize,
        ahead: usize,
    ) -> Self {
        let batches = Arc::new(batches);
        let mut prefetch = Self {
            workers: Workers::start(&batches, workers),
            batches,
            requests: Box::new(requests.fuse()),
            ahead: ahead.max(1),
            pending: VecDeque::new(),
        };
        prefetch.fill();
        prefetch
    }

    /// Sends requests to the workers until enough are under way.
    fn fill(&mut self) {
        while !self.workers.is_empty() && self.pending.len() < self.ahead {
            let Some(request) = self.requests.next() else {
                break;
            };
            self.pending.push_back(
                request.map(|request| Pending { reply: self.workers.compute(request.clone()), request }),
            );
        }
    }
}

impl<B: Batches> Iterator for Prefetch<B> {
    /// A request and its batch.
    type Item = Result<(Request, B::Batch), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.workers.is_empty() {
            let request = self.requests.next()?;
            return Some(request.and_then(|request| {
                let batch = compute(&*self.batches, &request)?;
                Ok((request, batch))
            }));
        }
        let item = self.pending.pop_front()?.and_then(|pending| {
            let Pending { request, reply } = pending;
            let batch = reply
                .recv()
                .unwrap_or_else(|_| Err(panicked(&request, "its worker thread ended".to_owned())))?;
            Ok((request, batch))
        });
        // Fills the queue last, so the awaited batch counts as under way until it has arrived.
        self.fill();
        Some(item)
    }
}

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
fn compute<B: Batches>(batches: &B, request: &Request) -> Result<B::Batch, DataError> {
    caught(|| batches.batch(request.epoch, request.positions.clone()))
        .unwrap_or_else(|message| Err(panicked(request, message)))
}

/// Creates the error for a request whose computation panicked.
fn panicked(request: &Request, message: String) -> DataError {
    DataError::Sample(SampleError::BatchPanicked {
        epoch: request.epoch,
        positions: request.positions.clone(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        ops::Range,
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;
    use crate::{Amount, Batch, Cursor, Cut, Requests, SampleError, TokenBatch};

    /// A batch that stores its positions and counts the live batches.
    #[derive(Debug)]
    struct Counted {
        positions: Range<usize>,
        alive: Arc<AtomicUsize>,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.alive.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Batch for Counted {
        fn items(&self) -> usize {
            self.positions.len()
        }
        fn samples(&self) -> usize {
            self.positions.len()
        }
        fn tokens(&self) -> usize {
            self.positions.len()
        }
    }

    /// Epochs of 10 samples, with an error at position 4 and a panic at 7 of epoch 1.
    #[derive(Default)]
    struct Faulty {
        alive: Arc<AtomicUsize>,
        most_alive: AtomicUsize,
    }

    impl Batches for Faulty {
        type Batch = Counted;

        fn samples(&self, _: u64) -> usize {
            10
        }

        fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<Counted, DataError> {
            if epoch == 1 && positions.contains(&4) {
                return Err(DataError::Sample(SampleError::OutOfRange { epoch, positions, samples: 4 }));
            }
            assert!(epoch != 1 || !positions.contains(&7), "no sample 7");
            let alive = self.alive.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_alive.fetch_max(alive, Ordering::SeqCst);
            Ok(Counted { positions, alive: self.alive.clone() })
        }
    }

    fn prefetch(batches: &Arc<Faulty>, workers: usize, ahead: usize) -> Prefetch<Arc<Faulty>> {
        let cut = Cut::new(Amount::Samples(6), Amount::Samples(3)).unwrap();
        let requests = Requests::new(batches.clone(), Cursor::default(), cut);
        Prefetch::new(batches.clone(), requests, workers, ahead)
    }

    /// Describes what is delivered for the first 40 requests.
    fn delivered(workers: usize, ahead: usize) -> Vec<String> {
        prefetch(&Arc::default(), workers, ahead)
            .take(40)
            .map(|result| match result {
                Ok((request, batch)) => format!("{request:?}: {:?}", batch.positions),
                Err(error) => error.to_string(),
            })
            .collect()
    }

    #[test]
    fn one_sequence_for_any_number_of_workers() {
        let expected = delivered(0, 0);
        assert!(expected[5].starts_with("epoch 1 has 4 samples, but positions 3..6"));
        assert!(expected[6].contains("positions 6..9 of epoch 1 panicked: no sample 7"));
        for place in (0..40).filter(|place| ![5, 6].contains(place)) {
            let (epoch, positions) = (place / 4, place % 4 * 3..(place % 4 * 3 + 3).min(10));
            let request = format!("Request {{ epoch: {epoch}, positions: {positions:?}");
            assert!(expected[place].starts_with(&request));
            assert!(expected[place].ends_with(&format!(": {positions:?}")));
        }
        for (workers, ahead) in [(1, 0), (1, 1), (2, 3), (4, 2), (4, 8)] {
            assert_eq!(delivered(workers, ahead), expected, "{workers}, {ahead}");
        }
    }

    #[test]
    fn a_failing_request_surfaces_at_its_place() {
        let request = |positions| Request { epoch: 0, positions, ends_step: None };
        for workers in [0, 2] {
            let requests = vec![
                Ok(request(0..1)),
                Err(DataError::Sample(SampleError::EmptyEpoch { epoch: 8 })),
                Ok(request(1..2)),
            ];
            let batches = Faulty::default();
            let results: Vec<_> = Prefetch::new(batches, requests.into_iter(), workers, 8).collect();
            assert!(matches!(
                results[..],
                [Ok(_), Err(DataError::Sample(SampleError::EmptyEpoch { epoch: 8 })), Ok(_)]
            ));
        }
    }

    #[test]
    fn an_early_drop_ends_the_workers() {
        for delivered in [0, 1, 5] {
            let batches = Arc::new(Faulty::default());
            drop(prefetch(&batches, 4, 8).take(delivered).collect::<Vec<_>>());
            assert_eq!(Arc::strong_count(&batches), 1);
            assert_eq!(batches.alive.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn few_batches_are_alive() {
        let batches = Arc::new(Faulty::default());
        for result in prefetch(&batches, 4, 3).take(100) {
            drop(result);
        }
        // Three are under way, in addition to the last one delivered.
        assert!(batches.most_alive.load(Ordering::SeqCst) <= 4);
    }

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
        let request = |position| Request { epoch: 0, positions: position..position + 1, ends_step: None };
        let replies: Vec<_> = (0..4).map(|at| workers.compute(request(at))).collect();
        assert!(replies.iter().all(|reply| reply.recv().unwrap().is_ok()));
    }

    #[test]
    fn without_threads_no_batch_arrives() {
        let workers = Workers::start(&Arc::new(Together(Barrier::new(1))), 0);
        assert!(workers.is_empty());
        let request = Request { epoch: 0, positions: 0..1, ends_step: None };
        assert!(workers.compute(request).recv().is_err());
    }
}
