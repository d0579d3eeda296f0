//! The thread that speaks MPI for a process.
//!
//! One thread makes all calls of MPI, and none that blocks: a peer that is stopped or gone cannot hold it.
//! Ranks hand it envelopes and go on; what it receives it puts into the mailboxes where ranks wait. So
//! exchanges go on while ranks compute, and an MPI library without support for threads will do.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mpi::Tag;
use mpi::Threading;
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::*;

use super::envelope::{Envelope, message};
use super::wire::{Receiving, Sending};
use crate::WorldError;
use crate::world::exchange::{Exchange, Notice};

const HEADER: Tag = 1;
const BUFFER: Tag = 2;

/// Rounds without news in which the thread stays awake: a call's messages come close together.
const AWAKE: u32 = 200;

/// The longest that it sleeps between two looks for news. It adds to the latency of a message, and each look
/// takes about a microsecond.
const NAP: Duration = Duration::from_micros(200);

/// The longest that an exit waits for other processes.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What the thread and the ranks share.
pub struct ProgressThread {
    state: Mutex<State>,
    /// There is something for the thread to do.
    work: Condvar,
    /// The thread has started, or ended.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// This process, and the number of processes: once MPI is up, or what prevented that.
    started: Option<Result<(usize, usize), WorldError>>,
    outgoing: VecDeque<(usize, Envelope, Vec<Bytes>)>,
    worlds: HashMap<u64, Weak<Exchange>>,
    /// Worlds joined so far.
    joined: u64,
    /// What came for worlds that this process has yet to join.
    early: Vec<(Envelope, Vec<Bytes>)>,
    /// A world failed: peers may be gone, and MPI is not ended in order.
    failed: bool,
    /// Until when to wait for the peers before the process exits.
    closing: Option<Instant>,
    /// The thread is done, and whether MPI was ended in order.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process, and the number of processes.
    pub fn started(&self, limit: Duration) -> Result<(usize, usize), WorldError> {
        let state = self.lock();
        let waiting = |state: &mut State| state.started.is_none();
        let waited = self.changed.wait_timeout_while(state, limit, waiting);
        let started = waited.unwrap_or_else(PoisonError::into_inner).0.started.clone();
        started.unwrap_or_else(|| Err(WorldError::Mpi(format!("MPI_Init did not return within {limit:?}"))))
    }

    /// Makes the next world, and puts what comes for it into its mailboxes from now on.
    pub fn enter(&self, make: impl FnOnce(u64) -> Exchange) -> Arc<Exchange> {
        let mut state = self.lock();
        let number = state.joined;
        let exchange = Arc::new(make(number));
        state.joined += 1;
        state.worlds.retain(|_, exchange| exchange.strong_count() > 0);
        state.worlds.insert(number, Arc::downgrade(&exchange));
        // Under the lock, so that what comes now comes after it. No rank holds the exchange's yet.
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

    /// Before the process exits: hands over what is left, and waits for the peers to be as far.
    ///
    /// If nothing failed, MPI is ended in order, which is a call that waits for all processes. If something
    /// did, it is not: a peer that is gone would hold it. Then the peers have `grace` to say what they
    /// know, before the launcher learns that a process failed and ends the others.
    pub fn close(&self, limit: Duration, grace: Duration) {
        let mut state = self.lock();
        if state.closed.is_some() || !matches!(state.started, Some(Ok(_))) {
            return;
        }
        let alive: Vec<_> = state.worlds.values().filter_map(Weak::upgrade).collect();
        drop(state);
        // `exit` was called while ranks of this process were in a world.
        alive.iter().for_each(|exchange| exchange.end_here());
        state = self.lock();
        // A deadline of for ever is no time that a clock can show.
        let limit = if state.failed { grace } else { limit.min(YEAR) };
        state.closing = Some(Instant::now() + limit);
        self.work.notify_all();
        let open = |state: &mut State| state.closed.is_none();
        // The thread gives up by itself, unless MPI does not return to it.
        let waited = self.changed.wait_timeout_while(state, limit + grace, open);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !state.failed && state.closed != Some(true) {
            let told = "MPI: not all processes ended in time; this one does not wait for them";
            // There is nobody left to tell that this fails.
            let _ = writeln!(std::io::stderr(), "{told}");
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
            exchange.arrived(from, to, sequence, message(call, pieces, buffers));
        }
        Envelope::Notice { notice, .. } => exchange.noticed(notice),
        Envelope::Leaving { .. } => {}
    }
}

/// The thread's own.
struct Thread(Arc<ProgressThread>);

impl Drop for Thread {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let worlds: Vec<_> = state.worlds.values().filter_map(Weak::upgrade).collect();
        state.closed.get_or_insert(false);
        drop(state);
        self.0.changed.notify_all();
        if std::thread::panicking() {
            let error = WorldError::Mpi("the thread that speaks MPI panicked".to_string());
            worlds.iter().for_each(|exchange| {
                exchange.fail(error.clone());
            });
        }
    }
}

/// What comes from one process, in its order.
#[derive(Default)]
struct Inbound {
    header: Option<Receiving>,
    /// Envelopes whose buffers are on their way.
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
            // Its end would be `MPI_Finalize`, which waits for peers that may be gone.
            std::mem::forget(universe);
        }
    }

    fn start(&self, started: Result<(usize, usize), WorldError>) {
        self.0.lock().started = Some(started);
        self.0.changed.notify_all();
    }

    /// Sends and receives until the process exits. Whether all processes have said that they end well.
    fn serve(&self, world: &SimpleCommunicator, me: usize, size: usize) -> bool {
        let peers: Vec<Process> = (0..size).map(|peer| world.process_at_rank(peer as i32)).collect();
        let mut inbound: Vec<Inbound> = (0..size).map(|_| Inbound::default()).collect();
        inbound[me].left = Some(true);
        let mut sending: Vec<Sending> = vec![];
        let mut said = None;
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
            if closing.is_some() && said != Some(well) {
                said = Some(well);
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

    /// Waits for something to do, the longer the longer there was nothing.
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

    /// Takes what has come from one process. Whether there was anything.
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
                        // Posted in the order of the headers, which is that of the buffers.
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
        // Nobody is left in a world that is gone.
        if let Some(exchange) = exchange {
            hand_over(&exchange, envelope, buffers);
        }
    }

    /// A header that is no header: another version of the program.
    fn refuse(&self, process: usize, error: &serde_json::Error) {
        let worlds: Vec<_> = self.0.lock().worlds.values().filter_map(Weak::upgrade).collect();
        let error = WorldError::Mpi(format!(
            "process {process} sent what this one cannot read ({error}): start the same program everywhere"
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
