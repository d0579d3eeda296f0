//! A rank's place in the exchange, and threads that do its work, piece by piece, while the rank goes on.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use burn::tensor::StreamId;

use crate::call::{Call, Group};
use crate::exchange::Exchange;
use crate::message::{Arrived, Piece};
use crate::{Collective, Timeline, WorldError};

/// What a thread that works for a rank does around its work.
pub(crate) type Around = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// A rank's place in the exchange, as a member of a group.
///
/// Threads that work for the rank share it: unlike the [`Communicator`](crate::Communicator), it does not keep the rank
/// alive. They take the numbers of their exchanges from the communicator beforehand, in the order of the rank's calls.
#[derive(Clone)]
pub(crate) struct Seat {
    pub exchange: Arc<Exchange>,
    /// The rank in the world.
    pub world_rank: usize,
    pub group: Group,
    /// The rank in the group.
    pub rank: usize,
    /// What threads that work for the rank do around their work.
    pub around: Arc<OnceLock<Around>>,
    /// What the rank does, and when.
    pub timeline: Timeline,
    /// The gathers that have begun.
    pub queue: Queue,
    /// Seconds waited for each rank of the world.
    waited: Arc<Mutex<Vec<f64>>>,
}

impl Seat {
    pub fn new(exchange: Arc<Exchange>, rank: usize) -> Self {
        let group = exchange.all();
        let waited = Arc::new(Mutex::new(vec![0.0; group.members.len()]));
        let (around, timeline) = (Arc::default(), Timeline::default());
        Self { exchange, world_rank: rank, rank, group, around, timeline, queue: Queue::default(), waited }
    }

    /// Returns this rank's place in another group.
    pub fn among(&self, group: Group) -> Self {
        let rank = group.members.iter().position(|member| *member == self.world_rank).unwrap_or(0);
        Self { group, rank, queue: Queue::default(), ..self.clone() }
    }

    /// Returns the number of ranks of the group.
    pub fn size(&self) -> usize {
        self.group.members.len()
    }

    /// Returns the seconds waited for each rank of the world so far.
    pub fn lateness(&self) -> Vec<f64> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells all ranks of the world that this one stops, and why.
    pub fn fail(&self, reason: &str) {
        let (rank, call) = (self.world_rank, self.exchange.place(self.world_rank));
        self.exchange.fail(WorldError::Rank { rank, call, reason: format!("failed: {reason}") });
    }

    /// Counts the traffic of a collective between devices to which a rank gives so many `elements`, of `bytes` bytes each: all
    /// of them for each other rank that gets them, or (N-1)/N of those that are summed, twice if all ranks get a whole sum.
    pub fn count_ring(&self, kind: Collective, elements: usize, bytes: usize) {
        let others = self.size() - 1;
        let moved = match kind {
            Collective::Shift => elements,
            Collective::AllGather => elements * others,
            Collective::AllReduce => (2 * elements * others).div_ceil(self.size()),
            _ => (elements * others).div_ceil(self.size()),
        };
        self.exchange.count_moved(self.world_rank, kind, moved, moved * bytes);
    }

    /// Sends `pieces[to]` to each rank of the group in the exchange of number `sequence`.
    pub fn post(
        &self,
        sequence: u64,
        call: &Arc<Call>,
        pieces: Vec<Vec<Option<Piece>>>,
    ) -> Result<(), WorldError> {
        self.exchange.post(self.world_rank, &self.group, sequence, call, pieces)
    }

    /// Waits for the pieces of all ranks of the group and returns them by rank.
    pub fn complete(&self, sequence: u64, call: &Arc<Call>) -> Result<Vec<Vec<Option<Piece>>>, WorldError> {
        let began = Instant::now();
        let Arrived { pieces, at, .. } = self.arrived(sequence, call, &AtomicBool::new(false))?;
        self.waited(began, &at);
        Ok(pieces)
    }

    /// Like [`complete`](Self::complete), for a thread that waits while the rank does not: counts no waiting, and returns an
    /// error once the rank has `given_up`.
    pub fn arrived(
        &self,
        sequence: u64,
        call: &Arc<Call>,
        given_up: &AtomicBool,
    ) -> Result<Arrived, WorldError> {
        let arrived = self.exchange.complete(self.world_rank, &self.group, sequence, call, given_up)?;
        self.timeline.exchanged(call.kind, || call.what.clone(), arrived.received, arrived.times);
        Ok(arrived)
    }

    /// Counts how long the rank has waited for each rank of the group.
    pub fn waited(&self, began: Instant, arrivals: &[Instant]) {
        let mut sums = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        for (member, at) in self.group.members.iter().zip(arrivals) {
            sums[*member] += at.saturating_duration_since(began).as_secs_f64();
        }
    }

    /// Does the work as a thread of the rank's does.
    pub fn within(&self, work: &mut dyn FnMut()) {
        match self.around.get() {
            Some(around) => around(work),
            None => work(),
        }
    }

    /// Sends the pieces and waits for those of all ranks of the group.
    pub fn exchanged(
        &self,
        sequence: u64,
        call: &Arc<Call>,
        pieces: Vec<Vec<Option<Piece>>>,
    ) -> Result<Vec<Vec<Option<Piece>>>, WorldError> {
        self.post(sequence, call, pieces)?;
        self.complete(sequence, call)
    }

    /// Gives up an exchange: its messages are dropped once all have arrived.
    pub fn abandon(&self, sequence: u64) {
        self.exchange.abandon(self.world_rank, &self.group, sequence);
    }
}

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

/// Starts the work on a thread of its own, and returns where its result arrives. What the work does on a device is in
/// this thread's stream: a stream of its own would hold its own memory. It must therefore hold no tensor that this thread
/// holds too, but those of a [`Handover`](firebrick_kernels::Handover).
///
/// If the work panics, nothing arrives, and the other ranks get an error that says what it was `doing`.
///
/// A rehearsal does the work at once, on this thread, so that it allocates in the same order each time.
pub(crate) fn start<T: Send + 'static>(
    seat: &Arc<Seat>,
    doing: &'static str,
    work: impl FnOnce() -> Result<T, WorldError> + Send + 'static,
) -> Receiver<Result<T, WorldError>> {
    let (job, handed_over) = job(seat, doing, work);
    match seat.exchange.is_rehearsal() {
        true => job(),
        false => drop(thread::spawn(job)),
    }
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
    match seat.exchange.is_rehearsal() {
        true => job(),
        false => seat.queue.push(job),
    }
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
