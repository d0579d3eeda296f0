//! The columns of real tokens, which an encoder reads.

use std::ops::Range;

use firebrick_datasets::collators::Inputs;
use firebrick_kernels::Reads;

/// The columns of each row's real tokens, which every position of an encoder reads. A row that is all padding reads all
/// of it, since softmax is undefined for a position that reads nothing.
#[derive(Clone, Debug)]
pub(crate) struct RealColumns {
    pub rows: Vec<Range<usize>>,
    columns: usize,
}

impl RealColumns {
    pub fn of(inputs: &Inputs) -> Self {
        let [_, columns] = inputs.shape();
        let mut rows = real_columns(inputs.host_mask(), inputs.shape());
        rows.iter_mut().filter(|row| row.start == row.end).for_each(|row| *row = 0..columns);
        Self { rows, columns }
    }

    /// Every one of `queries` positions reads them.
    pub fn read_by(&self, queries: usize) -> Reads {
        let reads = Reads::new([self.rows.len(), queries, self.columns], |row, _| self.rows[row].clone());
        reads.with_key_starts(self.rows.iter().map(|row| row.start))
    }

    /// Selects rows by index; rows may be left out or repeated.
    pub fn select(&self, rows: &[usize]) -> Self {
        Self { rows: rows.iter().map(|&row| self.rows[row].clone()).collect(), ..*self }
    }
}

/// The columns of each row's real tokens; none if the row has none.
pub(crate) fn real_columns(mask: &[bool], [rows, columns]: [usize; 2]) -> Vec<Range<usize>> {
    let of_row = |row: usize| {
        let row = &mask[row * columns..][..columns];
        let first = row.iter().position(|real| *real).unwrap_or(0);
        first..row.iter().rposition(|real| *real).map_or(first, |last| last + 1)
    };
    (0..rows).map(of_row).collect()
}
