//! The dropped weights of a row on a device: the mask of [`dropout`](crate::dropout()), computed where it is read.

use cubecl::prelude::*;

use crate::dropout::cube::{enter, hash, spread};

/// The words of a row of the batch: two of its key, then where its samples of queries and of keys start.
pub const WORDS: usize = 4;

/// The state of the hash for one query: see [`Key`](crate::dropout::mask::Key).
#[derive(CubeType, Clone, Copy)]
pub struct DroppedRow {
    first: u32,
    second: u32,
    /// The column where the row's sample of keys starts.
    start: u32,
}

/// Returns the state of a query, or any state if nothing `drops`. `keys` holds [`WORDS`] of each row of the batch.
#[cube]
pub fn dropped_row(
    keys: &[u32],
    row: usize,
    head: usize,
    query: usize,
    #[comptime] drops: bool,
) -> DroppedRow {
    let mut state = DroppedRow { first: 0u32, second: 0u32, start: 0u32 };
    if drops {
        let at = row * WORDS;
        let (a, b) = enter(keys[at], keys[at + 1], spread(head as u32));
        let (first, second) = enter(a, b, spread(query as u32 - keys[at + 2]));
        state.first = first;
        state.second = second;
        state.start = keys[at + 3];
    }
    state
}

/// Returns whether the weight of a key is dropped: whether its word is below the threshold.
#[cube]
pub fn is_dropped(row: &DroppedRow, key: usize, threshold: u32) -> bool {
    hash(spread(key as u32 - row.start) + row.first, row.second) < threshold
}
