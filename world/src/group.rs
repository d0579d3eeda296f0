//! A group of ranks.

use std::sync::Arc;

/// The ranks that call together: those of the world, or some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Distinguishes the groups of each rank: it is part of their call numbers.
    pub number: u64,
    /// The ranks in the world, in the order in which the group numbers them.
    pub members: Arc<[usize]>,
}

impl Group {
    /// Call numbers of each group.
    const CALLS: u64 = 1 << 48;

    /// Returns the number of a call of this group among all calls of a rank.
    pub fn sequence(&self, call: u64) -> u64 {
        self.number * Self::CALLS + call
    }
}
