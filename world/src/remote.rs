//! The route to the ranks of other processes.

use std::sync::Arc;

use crate::message::{Message, Notice, Piece};

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
