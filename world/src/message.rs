//! What ranks send one another, the messages for one rank in one call, and the route to the ranks of other processes.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::WorldError;
use crate::call::{Call, Group};

/// A buffer on its way to a rank.
#[derive(Clone, Debug)]
pub struct Piece {
    pub bytes: Bytes,
    /// Bytes of one element.
    pub element: usize,
}

/// A message from one rank to another in one call. `None` stands for a part that the sender lacks.
#[derive(Clone, Debug)]
pub struct Message {
    pub call: Arc<Call>,
    pub pieces: Vec<Option<Piece>>,
}

/// What happened to a rank, as announced to the others.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub enum Notice {
    /// The rank is done and makes no more calls.
    Ended(usize),
    /// The world is over.
    Failed(WorldError),
}

/// The messages for one rank in one call, by sender, and when they arrive.
#[derive(Default)]
pub struct Slot {
    pub messages: Vec<Option<(Message, Instant)>>,
    /// The group of the call, if the receiver gave it up and takes no message.
    pub abandoned: Option<Group>,
}

impl Slot {
    /// Returns the members of the group whose messages have not come.
    pub fn missing(&self, group: &Group) -> Vec<usize> {
        group.members.iter().copied().filter(|from| self.messages[*from].is_none()).collect()
    }

    /// Returns when the last message arrives. None is missing.
    pub fn last(&self) -> Option<Instant> {
        self.messages.iter().flatten().map(|(_, at)| *at).max()
    }

    /// Returns whether the call was given up, and no message is still to come.
    pub fn is_over(&self) -> bool {
        self.abandoned.as_ref().is_some_and(|group| self.missing(group).is_empty())
    }

    /// Returns the first rank in another call, and that call.
    pub fn elsewhere(&self, call: &Call) -> Option<(usize, &Call)> {
        let arrived =
            self.messages.iter().enumerate().filter_map(|(from, m)| Some((from, &*m.as_ref()?.0.call)));
        arrived.into_iter().find(|(_, theirs)| *theirs != call)
    }

    /// Returns what the group's members sent to `rank`, which has asked for it at `started`.
    pub fn arrived(mut self, rank: usize, group: &Group, started: Instant) -> Arrived {
        let (mut pieces, mut at) = (Vec::new(), Vec::new());
        // A rank sends to itself too, and that arrives at once.
        let sent = self.messages.get(rank).and_then(Option::as_ref).map_or(started, |(_, at)| *at);
        let times = (sent, self.last().unwrap_or(sent));
        for (message, arrived) in group.members.iter().filter_map(|from| self.messages[*from].take()) {
            pieces.push(message.pieces);
            at.push(arrived);
        }
        let others = group.members.iter().zip(&pieces).filter(|(from, _)| **from != rank);
        let received: usize = others.flat_map(|(_, p)| p.iter().flatten()).map(|p| p.bytes.len()).sum();
        Arrived { pieces, at, received: received as u64, times }
    }
}

/// The result of a complete call.
pub struct Arrived {
    /// The pieces of each member of the group, including its own.
    pub pieces: Vec<Vec<Option<Piece>>>,
    /// When those of each member arrived.
    pub at: Vec<Instant>,
    /// The bytes from other ranks.
    pub received: u64,
    /// When this rank sent its messages, and when the last one arrived.
    pub times: (Instant, Instant),
}

/// The route to the ranks of other processes. Its methods must not block.
pub trait Remote: Send + Sync {
    /// Returns the process of a rank.
    fn process(&self, rank: usize) -> usize;
    /// Sends a message to ranks of one process.
    fn send(&self, from: usize, to: Vec<usize>, sequence: u64, message: Message);
    fn tell(&self, notice: Notice);
    /// Notes that a fault ended the world.
    fn failed(&self);
}

/// Joins the messages of one call that are the same for several ranks of a process, so that a shard crosses to the process
/// once and not once for each of its ranks.
pub fn bundled(
    messages: Vec<(usize, Message)>,
    process: impl Fn(usize) -> usize,
) -> Vec<(Vec<usize>, Message)> {
    let mut bundles: Vec<(Vec<usize>, Message)> = Vec::new();
    for (to, message) in messages {
        let is_there = |(others, other): &&mut (Vec<usize>, Message)| {
            process(others[0]) == process(to) && are_same(other, &message)
        };
        match bundles.iter_mut().find(is_there) {
            Some((others, _)) => others.push(to),
            None => bundles.push((vec![to], message)),
        }
    }
    bundles
}

/// Returns whether two messages of one call are the same memory.
fn are_same(one: &Message, other: &Message) -> bool {
    let same_piece = |(one, other): (&Option<Piece>, &Option<Piece>)| match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => {
            let same_start = one.bytes.is_empty() || one.bytes.as_ptr() == other.bytes.as_ptr();
            same_start && one.bytes.len() == other.bytes.len() && one.element == other.element
        }
        _ => false,
    };
    Arc::ptr_eq(&one.call, &other.call)
        && one.pieces.len() == other.pieces.len()
        && one.pieces.iter().zip(&other.pieces).all(same_piece)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Collective;
    use crate::call::Call;

    /// Two processes of three ranks each, beside that of the sender.
    fn sent(pieces: impl Fn(usize) -> Vec<Option<Piece>>) -> Vec<Vec<usize>> {
        let call = Arc::new(Call::new(Collective::AllGather, "", vec![]));
        let to = |rank: usize| (rank, Message { call: call.clone(), pieces: pieces(rank) });
        let bundles = bundled((3..9).map(to).collect(), |rank| rank / 3);
        bundles.into_iter().map(|(to, _)| to).collect()
    }

    fn piece(bytes: Bytes) -> Option<Piece> {
        Some(Piece { bytes, element: 2 })
    }

    #[test]
    fn a_shard_crosses_once_to_each_process() {
        let (shard, other) = (Bytes::from(vec![1; 8]), Bytes::from(vec![1; 8]));
        let by_process = vec![vec![3, 4, 5], vec![6, 7, 8]];
        assert_eq!(sent(|_| vec![piece(shard.clone()), None]), by_process);
        // Without anything to send, as at a barrier, and without bytes.
        assert_eq!(sent(|_| vec![]), by_process);
        assert_eq!(sent(|_| vec![piece(Bytes::new())]), by_process);
        // Chunks of one buffer, of which each rank gets its own, or one for its place.
        let alone: Vec<_> = (3..9).map(|rank| vec![rank]).collect();
        assert_eq!(sent(|rank| vec![piece(shard.slice(0..rank - 1))]), alone);
        let by_place = vec![vec![3, 5], vec![4], vec![6, 8], vec![7]];
        assert_eq!(
            sent(|rank| vec![piece(if rank % 3 == 1 { other.clone() } else { shard.clone() })]),
            by_place
        );
        // A rank that lacks what the others get.
        let lacks = vec![vec![3, 4], vec![5], vec![6, 7, 8]];
        assert_eq!(sent(|rank| vec![(rank != 5).then(|| piece(shard.clone())).flatten()]), lacks);
    }
}
