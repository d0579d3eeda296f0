//! Counters of the data a rank has sent and received.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Collective;

/// The data one rank has exchanged with the others, by the kind of call.
///
/// Buffers count when they are handed to another rank or taken from one. Data that a rank keeps for itself and headers
/// do not count. A sum between devices counts as the traffic of a ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The counters of each kind of call that occurred.
    pub kinds: BTreeMap<Collective, Moved>,
}

/// The data moved in one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Calls made.
    pub calls: u64,
    /// Elements sent to other ranks.
    pub elements: u64,
    /// Bytes sent to other ranks.
    pub sent: u64,
    /// Bytes received from other ranks.
    pub received: u64,
}

impl Traffic {
    /// Returns the counters of one kind of call; zeros if it never occurred.
    pub fn of(&self, kind: Collective) -> Moved {
        self.kinds.get(&kind).copied().unwrap_or_default()
    }

    /// Returns the sum of the counters of all tensor collectives: all but [`Collective::Scalars`] and [`Collective::Barrier`].
    pub fn tensors(&self) -> Moved {
        let tensors =
            self.kinds.iter().filter(|(kind, _)| !matches!(kind, Collective::Scalars | Collective::Barrier));
        tensors.fold(Moved::default(), |sum, (_, moved)| Moved {
            calls: sum.calls + moved.calls,
            elements: sum.elements + moved.elements,
            sent: sum.sent + moved.sent,
            received: sum.received + moved.received,
        })
    }

    /// Returns what was counted since `earlier`, a copy of these counters.
    pub fn since(&self, earlier: &Self) -> Self {
        let kinds = self.kinds.iter().map(|(kind, now)| {
            let then = earlier.of(*kind);
            let moved = Moved {
                calls: now.calls.saturating_sub(then.calls),
                elements: now.elements.saturating_sub(then.elements),
                sent: now.sent.saturating_sub(then.sent),
                received: now.received.saturating_sub(then.received),
            };
            (*kind, moved)
        });
        Self { kinds: kinds.filter(|(_, moved)| *moved != Moved::default()).collect() }
    }

    pub(super) fn kind(&mut self, kind: Collective) -> &mut Moved {
        self.kinds.entry(kind).or_default()
    }
}
