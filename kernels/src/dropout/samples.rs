//! Where the samples of a batch stand in a tensor.

use std::sync::Arc;

use crate::Ragged;

/// Where the samples of a batch stand in a tensor `[rows, positions, ...]`, so that positions count from the start of
/// each sample. A clone shares the numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Samples {
    /// Each row is a sample from column 0 on.
    #[default]
    Columns,
    /// Each row is a sample from its column on, as in rows padded at the left. There may be more columns than rows.
    Starting(Arc<[usize]>),
    /// A single row holds the samples, one after the other.
    Ragged(Ragged),
}
