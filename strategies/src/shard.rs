//! Which part of a parameter a rank holds.

use std::ops::Range;

/// The rows, along the first axis of a parameter, that the master of one rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Rows of the whole parameter.
    pub whole: usize,
    /// Those of this rank: none, where the ranks before it hold all.
    pub rows: Range<usize>,
    /// Rows of the tensor that holds them: after those of the parameter come rows of zeros.
    pub padded: usize,
}
