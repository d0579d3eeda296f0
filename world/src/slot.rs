//! The messages for one rank in one call.

use std::time::Instant;

use crate::call::Call;
use crate::group::Group;
use crate::message::{Message, Piece};

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
