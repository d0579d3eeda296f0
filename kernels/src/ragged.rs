//! Rows of different lengths, one after the other.

use std::ops::Range;
use std::sync::Arc;

/// The rows of a batch, one after the other in a single row of a tensor, `[1, total, width]`, without padding.
///
/// A clone shares the places of the rows: 8 bytes for each row, on the host.
///
/// ```
/// use firebrick_kernels::Ragged;
///
/// let rows = Ragged::new([3, 0, 2]);
/// assert_eq!((rows.len(), rows.total(), rows.longest()), (3, 5, 3));
/// assert_eq!(rows.row(2), 3..5);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ragged {
    /// The first position of each row, and the position after the last row.
    cuts: Arc<[usize]>,
    longest: usize,
}

impl Ragged {
    /// Places rows of these lengths, in this order.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        let (mut cuts, mut longest) = (vec![0], 0);
        for length in lengths {
            cuts.push(cuts[cuts.len() - 1] + length);
            longest = longest.max(length);
        }
        Self { cuts: cuts.into(), longest }
    }

    /// Returns the number of rows.
    #[expect(clippy::len_without_is_empty, reason = "rows may be empty, so that the word would mislead")]
    pub fn len(&self) -> usize {
        self.cuts.len() - 1
    }

    /// Returns the number of positions of all rows.
    pub fn total(&self) -> usize {
        self.cuts[self.len()]
    }

    /// Returns the number of positions of the longest row.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the positions of a row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row(&self, row: usize) -> Range<usize> {
        self.cuts[row]..self.cuts[row + 1]
    }
}
