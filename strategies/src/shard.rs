//! The part of a parameter that a rank holds.

use std::ops::Range;

/// The rows, along the first axis of a parameter, that the master holds on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Rows of the whole parameter.
    pub whole: usize,
    /// The rows of this rank: empty if earlier ranks hold all rows.
    pub rows: Range<usize>,
    /// Rows of the tensor that stores the shard: rows of zeros follow the parameter's rows.
    pub padded: usize,
    /// The number of this copy of the shard: other ranks may hold the same rows. A checkpoint has those of copy 0.
    pub copy: usize,
}
