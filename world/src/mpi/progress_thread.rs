//! The thread that makes a process's MPI calls.
//!
//! One thread makes all MPI calls and never a blocking one, so a peer that is stopped or gone cannot hold it.
//! Ranks hand it envelopes and continue; it puts received messages into the mailboxes where ranks wait. Exchanges
//! therefore proceed while ranks compute, and an MPI library without thread support suffices.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mpi::Tag;
use mpi::Threading;
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::*;

use super::wire::{Envelope, Receiving, Sending, message};
use crate::WorldError;
use crate::exchange::Exchange;
use crate::message::Notice;

const HEADER: Tag = 1;
const BUFFER: Tag = 2;

/// Rounds without news before the thread sleeps: a call's messages arrive close together.
const AWAKE: u32 = 200;

/// The longest sleep between two polls. It adds to a message's latency, and each poll takes about a microsecond.
const NAP: Duration = Duration::from_micros(200);

/// The longest time that an exit waits for other processes.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The state that the thread and the ranks share.
pub struct ProgressThread {
    state: Mutex<ThreadState>,
    /// Signals work for the thread.
    work: Condvar,
    /// Signals that the thread has started or ended.
    changed: Condvar,
}

#[derive(Default)]
struct ThreadState {
    /// This process's number and the number of processes once MPI is up, or the error that prevented it.
    started: Option<Result<(usize, usize), WorldError>>,
    outgoing: VecDeque<(usize, Envelope, Vec<Bytes>)>,
    worlds: HashMap<u64, Weak<Exchange>>,
    /// Worlds joined so far.
    joined: u64,
    /// Envelopes of worlds that this process has yet to join.
    early: Vec<(Envelope, Vec<Bytes>)>,
    /// Whether a world failed: peers may be gone, so MPI is not finalized.
    failed: bool,
    /// Deadline of the exit's wait for the peers.
    closing: Option<Instant>,
    /// Set once the thread is done: whether it finalized MPI.
    closed: Option<bool>,
}

impl ProgressThread {
    pub fn open() -> Arc<Self> {
        let progress =
            Arc::new(Self { state: Mutex::default(), work: Condvar::new(), changed: Condvar::new() });
        let thread = Thread(progress.clone());
        let started = std::thread::Builder::new().name("mpi".to_string()).spawn(move || thread.run());
        if let Err(error) = started {
            let error = WorldError::Mpi(format!("its thread could not be started: {error}"));
            progress.lock().started = Some(Err(error));
        }
        progress
    }

    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until MPI is up. Returns this process's number and the number of processes.
    pub fn started(&self, limit: Duration) -> Result<(usize, usize), WorldError> {
        let state = self.lock();
        let waiting = |state: &mut ThreadState| state.started.is_none();
        let waited = self.changed.wait_timeout_while(state, limit, waiting);
        let started = waited.unwrap_or_else(PoisonError::into_inner).0.started.clone();
        started.unwrap_or_else(|| Err(WorldError::Mpi(format!("MPI_Init did not return within {limit:?}"))))
    }

    /// Creates the next world, whose envelopes go into its mailboxes from now on.
    pub fn enter(&self, make: impl FnOnce(u64) -> Exchange) -> Arc<Exchange> {
        let mut state = self.lock();
        let number = state.joined;
        let exchange = Arc::new(make(number));
        state.joined += 1;
        state.worlds.retain(|_, exchange| exchange.strong_count() > 0);
        state.worlds.insert(number, Arc::downgrade(&exchange));
        // Holds the lock, so that later envelopes stay behind the early ones. No rank holds the exchange's lock yet.
        for (envelope, buffers) in std::mem::take(&mut state.early) {
            if number_of(&envelope) == Some(number) {
                hand_over(&exchange, envelope, buffers);
            } else {
                state.early.push((envelope, buffers));
            }
        }
        exchange
    }

    pub fn send(&self, to: usize, envelope: Envelope, buffers: Vec<Bytes>) {
        self.lock().outgoing.push_back((to, envelope, buffers));
        self.work.notify_all();
    }

    /// Notes that a world failed, here or elsewhere.
    pub fn failed(&self) {
        self.lock().failed = true;
    }

    /// Flushes outgoing messages and waits for the peers to do the same, before the process exits.
    ///
    /// If nothing failed, finalizes MPI, a call that waits for all processes. If a world failed, skips it, because a
    /// peer that is gone would block it. The peers then have `grace` to report what they know, before the launcher
    /// learns that a process failed and ends the others.
    pub fn close(&self, limit: Duration, grace: Duration) {
        let mut state = self.lock();
        if state.closed.is_some() || !matches!(state.started, Some(Ok(_))) {
            return;
        }
        let alive: Vec<_> = state.worlds.values().filter_map(Weak::upgrade).collect();
        drop(state);
        // The program called `exit` while ranks of this process were in a world.
        alive.iter().for_each(|exchange| exchange.end_here());
        state = self.lock();
        // `Instant` cannot represent an infinite deadline.
        let limit = if state.failed { grace } else { limit.min(YEAR) };
        state.closing = Some(Instant::now() + limit);
        self.work.notify_all();
        let open = |state: &mut ThreadState| state.closed.is_none();
        // The thread gives up by itself, unless an MPI call hangs.
        let waited = self.changed.wait_timeout_while(state, limit + grace, open);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !state.failed && state.closed != Some(true) {
            let warning = "MPI: not all processes ended in time; this one does not wait for them";
            // If this fails too, there is nobody left to report to.
            let _ = writeln!(std::io::stderr(), "{warning}");
        }
    }
}

fn number_of(envelope: &Envelope) -> Option<u64> {
    match envelope {
        Envelope::Message { world, .. } | Envelope::Notice { world, .. } => Some(*world),
        Envelope::Leaving { .. } => None,
    }
}

fn hand_over(exchange: &Exchange, envelope: Envelope, buffers: Vec<Bytes>) {
    match envelope {
        Envelope::Message { from, to, sequence, call, pieces, .. } => {
            let message = message(call, pieces, buffers);
            to.into_iter().for_each(|to| exchange.arrived(from, to, sequence, message.clone()));
        }
        Envelope::Notice { notice, .. } => exchange.noticed(notice),
        Envelope::Leaving { .. } => {}
    }
}

/// The thread's end of the shared state.
struct Thread(Arc<ProgressThread>);

impl Drop for Thread {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let worlds: Vec<_> = state.worlds.values().filter_map(Weak::upgrade).collect();
        state.closed.get_or_insert(false);
        drop(state);
        self.0.changed.notify_all();
        if std::thread::panicking() {
            let error = WorldError::Mpi("the MPI thread panicked".to_string());
            worlds.iter().for_each(|exchange| {
                exchange.fail(error.clone());
            });
        }
    }
}

/// What one process has sent, in order.
#[derive(Default)]
struct Inbound {
    header: Option<Receiving>,
    /// Envelopes whose buffers are still arriving.
    waiting: VecDeque<(Envelope, VecDeque<Receiving>, Vec<Bytes>)>,
    left: Option<bool>,
}

impl Thread {
    fn run(self) {
        let Some((universe, provided)) = mpi::initialize_with_threading(Threading::Funneled) else {
            let error = "it is in use by another part of this program; the world needs it for itself";
            return self.start(Err(WorldError::Mpi(error.to_string())));
        };
        let world = universe.world();
        let (me, size) = (world.rank() as usize, world.size() as usize);
        if provided < Threading::Funneled {
            let error = "this library allows no threads at all; use one built with MPI_THREAD_FUNNELED";
            return self.start(Err(WorldError::Mpi(error.to_string())));
        }
        self.start(Ok((me, size)));
        let in_order = self.serve(&world, me, size);
        if in_order {
            drop(universe);
            self.0.lock().closed = Some(true);
        } else {
            // Dropping it would call `MPI_Finalize`, which waits for peers that may be gone.
            std::mem::forget(universe);
        }
    }

    fn start(&self, started: Result<(usize, usize), WorldError>) {
        self.0.lock().started = Some(started);
        self.0.changed.notify_all();
    }

    /// Sends and receives until the process exits. Returns whether all processes announced a clean end.
    fn serve(&self, world: &SimpleCommunicator, me: usize, size: usize) -> bool {
        let peers: Vec<Process> = (0..size).map(|peer| world.process_at_rank(peer as i32)).collect();
        let mut inbound: Vec<Inbound> = (0..size).map(|_| Inbound::default()).collect();
        inbound[me].left = Some(true);
        let mut sending: Vec<Sending> = vec![];
        let mut announced = None;
        let mut idle = 0;
        loop {
            let mut news = false;
            let mut state = self.0.lock();
            let outgoing = std::mem::take(&mut state.outgoing);
            let closing = state.closing;
            let well = !state.failed;
            drop(state);
            for (to, envelope, buffers) in outgoing {
                news = true;
                post(&peers[to], &envelope, buffers, &mut sending);
            }
            if closing.is_some() && announced != Some(well) {
                announced = Some(well);
                let others = peers.iter().enumerate().filter(|(peer, _)| *peer != me);
                others.for_each(|(_, peer)| post(peer, &Envelope::Leaving { well }, vec![], &mut sending));
            }
            for (number, inbound) in inbound.iter_mut().enumerate().filter(|(number, _)| *number != me) {
                news |= self.receive(number, &peers[number], inbound);
            }
            let before = sending.len();
            sending = sending.into_iter().filter_map(Sending::unless_done).collect();
            news |= sending.len() < before;
            if let Some(until) = closing {
                if sending.is_empty() && inbound.iter().all(|peer| peer.left.is_some()) {
                    return well && inbound.iter().all(|peer| peer.left == Some(true));
                }
                if Instant::now() >= until {
                    return false;
                }
            }
            idle = if news { 0 } else { idle + 1 };
            self.rest(idle);
        }
    }

    /// Waits for work, longer as the idle time grows.
    fn rest(&self, idle: u32) {
        if idle < AWAKE {
            return std::thread::yield_now();
        }
        let nap = Duration::from_micros(10 << (idle - AWAKE).min(10)).min(NAP);
        let state = self.0.lock();
        if state.outgoing.is_empty() {
            drop(self.0.work.wait_timeout(state, nap));
        }
    }

    /// Receives what has arrived from one process. Returns whether there was anything.
    fn receive(&self, number: usize, peer: &Process, inbound: &mut Inbound) -> bool {
        let mut news = false;
        if inbound.header.is_none()
            && let Some(status) = peer.immediate_probe_with_tag(HEADER)
        {
            let length = status.count(u8::equivalent_datatype()) as usize;
            inbound.header = Some(Receiving::start(peer, HEADER, length));
            news = true;
        }
        match inbound.header.take().map(Receiving::finished) {
            None => {}
            Some(Err(unfinished)) => inbound.header = Some(unfinished),
            Some(Ok(header)) => {
                news = true;
                match serde_json::from_slice::<Envelope>(&header) {
                    Ok(envelope) => {
                        // Posted in the order of the headers, which is the order of the buffers.
                        let lengths = envelope.lengths().into_iter();
                        let buffers = lengths.map(|length| Receiving::start(peer, BUFFER, length)).collect();
                        inbound.waiting.push_back((envelope, buffers, vec![]));
                    }
                    Err(error) => self.refuse(number, &error),
                }
            }
        }
        while let Some((_, pending, buffers)) = inbound.waiting.front_mut() {
            while let Some(buffer) = pending.pop_front() {
                match buffer.finished() {
                    Ok(bytes) => buffers.push(bytes),
                    Err(unfinished) => {
                        pending.push_front(unfinished);
                        return news;
                    }
                }
            }
            if let Some((envelope, _, buffers)) = inbound.waiting.pop_front() {
                news = true;
                self.deliver(envelope, buffers, inbound);
            }
        }
        news
    }

    fn deliver(&self, envelope: Envelope, buffers: Vec<Bytes>, inbound: &mut Inbound) {
        let Some(number) = number_of(&envelope) else {
            if let Envelope::Leaving { well } = envelope {
                inbound.left = Some(well);
            }
            return;
        };
        let mut state = self.0.lock();
        if let Envelope::Notice { notice: Notice::Failed(_), .. } = envelope {
            state.failed = true;
        }
        if number >= state.joined {
            return state.early.push((envelope, buffers));
        }
        let exchange = state.worlds.get(&number).and_then(Weak::upgrade);
        drop(state);
        // A dropped world has no rank left to receive it.
        if let Some(exchange) = exchange {
            hand_over(&exchange, envelope, buffers);
        }
    }

    /// Fails all worlds after an unreadable header, which another version of the program sent.
    fn refuse(&self, process: usize, error: &serde_json::Error) {
        let worlds: Vec<_> = self.0.lock().worlds.values().filter_map(Weak::upgrade).collect();
        let error = WorldError::Mpi(format!(
            "process {process} sent a message that this one cannot read ({error}): start the same program everywhere"
        ));
        worlds.iter().for_each(|exchange| {
            exchange.fail(error.clone());
        });
    }
}

fn post(peer: &Process, envelope: &Envelope, buffers: Vec<Bytes>, sending: &mut Vec<Sending>) {
    // Every field is a number, a string or a list of them.
    let header = serde_json::to_vec(envelope).expect("an envelope is plain data");
    sending.push(Sending::start(peer, HEADER, header.into()));
    sending.extend(buffers.into_iter().map(|buffer| Sending::start(peer, BUFFER, buffer)));
}
