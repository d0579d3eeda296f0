//! The primitive below every collective: each rank sends each rank a message.
//!
//! A call has two steps. [`Exchange::post`] sends this rank's messages and returns at once; [`Exchange::complete`]
//! waits for the messages of all ranks. A message carries the sender's call number, which allows several calls in
//! flight, and the call itself, which lets ranks in different calls notice. A call is one of a [`Group`] of ranks.
//!
//! Ranks of one process pass the buffers themselves, through mailboxes behind one lock. Messages to another process go
//! through a [`Remote`], and messages from there land in the same mailboxes, so a waiting rank needs no distinction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::call::{Call, Group};
use crate::message::{Arrived, Message, Notice, Piece, Remote, Slot, bundled};
use crate::{Collective, Link, Traffic, WorldError};

/// The mailboxes of a process's ranks, and the route to all others.
pub struct Exchange {
    size: usize,
    /// The ranks of this process.
    here: std::ops::Range<usize>,
    deadline: Duration,
    state: Mutex<ExchangeState>,
    /// One condition variable for each rank of this process.
    arrivals: Vec<Condvar>,
    remote: Option<Box<dyn Remote>>,
    /// The link of each rank, if one is simulated.
    link: Option<Link>,
    /// Whether the only rank of this process also answers for all others.
    is_rehearsal: bool,
}

#[derive(Default)]
struct ExchangeState {
    /// Indexed by receiver and call number.
    slots: HashMap<(usize, u64), Slot>,
    ended: Vec<bool>,
    /// The last known call of each rank.
    seen: Vec<Option<Arc<Call>>>,
    failure: Option<WorldError>,
    /// Indexed by local rank.
    traffic: Vec<Traffic>,
    /// When the link of each rank of this process has sent all that it was given, if that is known.
    sent: Vec<Option<Instant>>,
}

impl Exchange {
    /// Creates a world of `size` ranks; this process runs the ranks `here`.
    pub fn new(size: usize, here: std::ops::Range<usize>, deadline: Duration) -> Self {
        let state = ExchangeState {
            ended: vec![false; size],
            seen: vec![None; size],
            traffic: vec![Traffic::default(); here.len()],
            sent: vec![None; here.len()],
            ..ExchangeState::default()
        };
        let arrivals = here.clone().map(|_| Condvar::new()).collect();
        let (state, remote, link) = (Mutex::new(state), None, None);
        Self { size, here, deadline, state, arrivals, remote, link, is_rehearsal: false }
    }

    /// Creates a world of `size` ranks of which only the first exists: each other one answers with what the first sends to
    /// itself.
    pub fn rehearsal(size: usize) -> Self {
        Self { is_rehearsal: true, ..Self::new(size, 0..1, Duration::MAX) }
    }

    pub fn is_rehearsal(&self) -> bool {
        self.is_rehearsal
    }

    /// Simulates a link between the ranks of this process.
    pub fn over_link(self, link: Option<Link>) -> Self {
        Self { link, ..self }
    }

    /// Adds the route to ranks in other processes.
    #[cfg(feature = "mpi")]
    pub fn beyond(self, remote: Box<dyn Remote>) -> Self {
        Self { remote: Some(remote), ..self }
    }

    /// Returns how long a rank waits for the others.
    #[cfg(feature = "nccl")]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the group of all ranks.
    pub fn all(&self) -> Group {
        Group { number: 0, members: (0..self.size).collect() }
    }

    /// Returns the index of a rank among those of this process.
    pub fn local(&self, rank: usize) -> usize {
        rank - self.here.start
    }

    /// Locks the state. A panic elsewhere leaves the state consistent, because each change to it is one step.
    fn lock(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call of `rank`.
    pub fn count(&self, rank: usize, kind: Collective) {
        self.lock().traffic[self.local(rank)].kind(kind).calls += 1;
    }

    /// Counts data that `rank` sent and received by a route outside this exchange; both directions have the same size.
    pub fn count_moved(&self, rank: usize, kind: Collective, elements: usize, bytes: usize) {
        let mut state = self.lock();
        let moved = state.traffic[self.local(rank)].kind(kind);
        moved.elements += elements as u64;
        moved.sent += bytes as u64;
        moved.received += bytes as u64;
    }

    pub fn traffic(&self, rank: usize) -> Traffic {
        self.lock().traffic[self.local(rank)].clone()
    }

    /// Sends `pieces[to]` to each member of the group.
    pub fn post(
        &self,
        rank: usize,
        group: &Group,
        sequence: u64,
        call: &Arc<Call>,
        pieces: Vec<Vec<Option<Piece>>>,
    ) -> Result<(), WorldError> {
        let mut state = self.lock();
        state.seen[rank] = Some(call.clone());
        if let Some(failure) = &state.failure {
            return Err(seen_from(failure, call));
        }
        let (mut away, now) = (Vec::new(), Instant::now());
        for (&to, pieces) in group.members.iter().zip(pieces) {
            let mut at = now;
            if to != rank {
                at = self.arrival(&mut state, rank, &pieces, now);
                let moved = state.traffic[self.local(rank)].kind(call.kind);
                for piece in pieces.iter().flatten() {
                    moved.sent += piece.bytes.len() as u64;
                    moved.elements += (piece.bytes.len() / piece.element) as u64;
                }
            }
            let message = Message { call: call.clone(), pieces };
            if self.is_rehearsal {
                if to == rank {
                    let from = group.members.iter();
                    from.for_each(|from| self.put(&mut state, (*from, to), sequence, message.clone(), now));
                }
                continue;
            }
            match &self.remote {
                Some(_) if !self.here.contains(&to) => away.push((to, message)),
                _ => self.put(&mut state, (rank, to), sequence, message, at),
            }
        }
        if let Some(remote) = &self.remote {
            for (to, message) in bundled(away, |to| remote.process(to)) {
                remote.send(rank, to, sequence, message);
            }
        }
        Ok(())
    }

    /// Takes a message to another rank onto the link of `rank`, and returns when it arrives.
    fn arrival(
        &self,
        state: &mut ExchangeState,
        rank: usize,
        pieces: &[Option<Piece>],
        now: Instant,
    ) -> Instant {
        let Some(link) = self.link else { return now };
        let bytes = pieces.iter().flatten().map(|piece| piece.bytes.len()).sum();
        let sent = &mut state.sent[self.local(rank)];
        let free = sent.map_or(now, |sent| sent.max(now)) + link.occupied(bytes);
        *sent = Some(free);
        free + link.travels()
    }

    /// Returns whether a message is on its way over a simulated link.
    fn is_on_its_way(&self, state: &ExchangeState, now: Instant) -> bool {
        self.link.is_some_and(|link| state.sent.iter().flatten().any(|sent| *sent + link.travels() > now))
    }

    /// Waits for the messages of all members of the group, until the rank has `given_up`: see [`wake`](Self::wake).
    pub fn complete(
        &self,
        rank: usize,
        group: &Group,
        sequence: u64,
        call: &Arc<Call>,
        given_up: &AtomicBool,
    ) -> Result<Arrived, WorldError> {
        let (started, arrival) = (Instant::now(), &self.arrivals[self.local(rank)]);
        // Waits in steps: if this whole process is suspended, only one step counts towards the deadline.
        let (step, mut waited) = (self.deadline / 20, Duration::ZERO);
        let mut state = self.lock();
        loop {
            let slot = state.slots.entry((rank, sequence)).or_default();
            slot.messages.resize_with(self.size, || None);
            let missing = slot.missing(group);
            let elsewhere = slot.elsewhere(call).map(|(other, theirs)| (other, call.beside(theirs)));
            if missing.is_empty() && elsewhere.is_none() {
                // A complete call succeeds even if the world has failed since: the result must not depend on how
                // soon after its last message another rank fails.
                let left =
                    slot.last().map_or(Duration::ZERO, |last| last.saturating_duration_since(Instant::now()));
                if !left.is_zero() {
                    state = arrival.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                return Ok(self.take(&mut state, (rank, group), sequence, call.kind, started));
            }
            let given_up = given_up.load(Ordering::Relaxed).then(|| call.unread("this rank has given it up"));
            if let Some(error) = state.failure.as_ref().map(|failure| seen_from(failure, call)).or(given_up) {
                return Err(error);
            }
            if let Some((other, (call, found))) = elsewhere {
                return Err(self.fail_with(state, WorldError::Mismatch { rank, call, other, found }));
            }
            if let Some(gone) = missing.iter().copied().find(|other| state.ended[*other]) {
                let reason = "has ended while others continue".to_string();
                let error = WorldError::Rank { rank: gone, call: call.to_string(), reason };
                return Err(self.fail_with(state, error));
            }
            if waited >= self.deadline {
                let seen = missing.iter().map(|rank| state.seen[*rank].as_ref().map(|call| call.to_string()));
                let (seen, limit) = (seen.collect(), self.deadline);
                let error = WorldError::Deadline { ranks: missing, call: call.to_string(), limit, seen };
                return Err(self.fail_with(state, error));
            }
            let slept = Instant::now();
            state = arrival.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner).0;
            // A rank that does not come because a message for it is still on its way is not late.
            if !self.is_on_its_way(&state, slept) {
                // Counts at least one tick, so that a zero deadline passes too.
                waited += slept.elapsed().min(step).max(Duration::from_nanos(1));
            }
        }
    }

    fn take(
        &self,
        state: &mut ExchangeState,
        (rank, group): (usize, &Group),
        sequence: u64,
        kind: Collective,
        started: Instant,
    ) -> Arrived {
        let arrived = state.slots.remove(&(rank, sequence)).unwrap_or_default().arrived(rank, group, started);
        state.traffic[self.local(rank)].kind(kind).received += arrived.received;
        arrived
    }

    /// Lets the threads that wait for messages to `rank` see that it has given up.
    pub fn wake(&self, rank: usize) {
        // After this, no thread is between its look and its wait.
        drop(self.lock());
        self.arrivals[self.local(rank)].notify_all();
    }

    /// Gives up this call of `rank`: its messages are dropped once all have arrived.
    pub fn abandon(&self, rank: usize, group: &Group, sequence: u64) {
        let mut state = self.lock();
        let slot = state.slots.entry((rank, sequence)).or_default();
        slot.messages.resize_with(self.size, || None);
        slot.abandoned = Some(group.clone());
        if slot.is_over() {
            state.slots.remove(&(rank, sequence));
        }
    }

    /// Puts a message that arrives at this time into the mailbox of a rank of this process.
    fn put(
        &self,
        state: &mut ExchangeState,
        (from, to): (usize, usize),
        sequence: u64,
        message: Message,
        at: Instant,
    ) {
        state.seen[from] = Some(message.call.clone());
        let slot = state.slots.entry((to, sequence)).or_default();
        slot.messages.resize_with(self.size, || None);
        slot.messages[from] = Some((message, at));
        if slot.is_over() {
            state.slots.remove(&(to, sequence));
        }
        self.arrivals[self.local(to)].notify_all();
    }

    /// Ends the world with an error, unless it is over already. Returns the error that it ended with.
    pub fn fail(&self, error: WorldError) -> WorldError {
        self.fail_with(self.lock(), error)
    }

    fn fail_with(&self, mut state: MutexGuard<'_, ExchangeState>, error: WorldError) -> WorldError {
        if state.failure.is_none() {
            state.failure = Some(error.clone());
            if let Some(remote) = &self.remote {
                remote.failed();
                remote.tell(Notice::Failed(error.clone()));
            }
            self.arrivals.iter().for_each(Condvar::notify_all);
        }
        error
    }

    /// Announces that `rank` makes no more calls.
    pub fn end(&self, rank: usize) {
        let mut state = self.lock();
        state.ended[rank] = true;
        if let Some(remote) = &self.remote {
            remote.tell(Notice::Ended(rank));
        }
        self.arrivals.iter().for_each(Condvar::notify_all);
    }

    /// Announces that no rank of this process makes more calls.
    #[cfg(feature = "mpi")]
    pub fn end_here(&self) {
        let going: Vec<_> = self.here.clone().filter(|rank| !self.lock().ended[*rank]).collect();
        going.into_iter().for_each(|rank| self.end(rank));
    }

    /// Delivers a message from another process.
    #[cfg(feature = "mpi")]
    pub fn arrived(&self, from: usize, to: usize, sequence: u64, message: Message) {
        self.put(&mut self.lock(), (from, to), sequence, message, Instant::now());
    }

    /// Delivers a notice from another process.
    #[cfg(feature = "mpi")]
    pub fn noticed(&self, notice: Notice) {
        let mut state = self.lock();
        match notice {
            Notice::Ended(rank) => state.ended[rank] = true,
            Notice::Failed(error) => {
                state.failure.get_or_insert(error);
            }
        }
        self.arrivals.iter().for_each(Condvar::notify_all);
    }

    /// Returns the error that ended the world, as `rank` sees it.
    pub fn failure(&self, rank: usize) -> Option<WorldError> {
        let state = self.lock();
        let failure = state.failure.as_ref()?;
        Some(match &state.seen[rank] {
            Some(call) => seen_from(failure, call),
            None => failure.clone(),
        })
    }

    /// Describes the last call of `rank`, for errors.
    pub fn place(&self, rank: usize) -> String {
        let state = self.lock();
        state.seen[rank].as_ref().map_or("no call yet".to_string(), |call| call.to_string())
    }
}

/// Returns a failure with the call of the rank that receives it.
fn seen_from(failure: &WorldError, call: &Call) -> WorldError {
    match failure.clone() {
        WorldError::Rank { rank, reason, .. } => WorldError::Rank { rank, call: call.to_string(), reason },
        failure => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abandoned calls free their slots, whether the messages arrive before or after.
    #[test]
    fn abandoned_exchanges_are_freed() {
        let exchange = Exchange::new(2, 0..2, Duration::from_secs(600));
        let (call, all) = (Arc::new(Call::new(Collective::AllGather, "", vec![])), exchange.all());
        let post = |rank, sequence| exchange.post(rank, &all, sequence, &call, vec![vec![]; 2]).unwrap();
        let abandon = |sequence| {
            exchange.abandon(0, &all, sequence);
            exchange.abandon(1, &all, sequence);
        };
        post(0, 0);
        post(1, 0);
        abandon(0);
        assert!(exchange.lock().slots.is_empty());
        post(0, 1);
        abandon(1);
        post(1, 1);
        assert!(exchange.lock().slots.is_empty());
        abandon(2);
        post(0, 2);
        post(1, 2);
        assert!(exchange.lock().slots.is_empty());
    }
}
