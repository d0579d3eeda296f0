//! Matrices in slices, as products read them.

use std::ops::Range;

/// Matrices of one shape in a slice.
pub struct Matrices<'a, T> {
    data: &'a [T],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
    /// The index of each matrix's first element.
    pub(super) starts: Vec<usize>,
}

impl<'a, T> Matrices<'a, T> {
    /// # Panics
    ///
    /// If an element is outside the slice.
    pub fn new(data: &'a [T], [rows, cols]: [usize; 2], strides: [usize; 2], starts: Vec<usize>) -> Self {
        let [row_stride, col_stride] = strides;
        if rows > 0 && cols > 0 {
            let last = (rows - 1)
                .checked_mul(row_stride)
                .zip((cols - 1).checked_mul(col_stride))
                .and_then(|(down, right)| down.checked_add(right));
            let inside = |start: &usize| {
                last.and_then(|last| last.checked_add(*start)).is_some_and(|last| last < data.len())
            };
            assert!(starts.iter().all(inside), "a matrix of [{rows}, {cols}] exceeds its storage");
        }
        Self { data, rows, cols, row_stride, col_stride, starts }
    }

    /// Returns the address of an element, or of the storage if the matrices are empty.
    pub(super) fn at(&self, matrix: usize, row: usize, col: usize) -> *const T {
        if self.rows == 0 || self.cols == 0 {
            return self.data.as_ptr();
        }
        let at = self.starts[matrix] + row * self.row_stride + col * self.col_stride;
        &raw const self.data[at]
    }

    /// Returns these rows of a column, whose elements are adjacent.
    pub(super) fn column(&self, matrix: usize, col: usize, rows: Range<usize>) -> &'a [T] {
        debug_assert_eq!(self.row_stride, 1);
        let start = self.starts[matrix] + col * self.col_stride;
        &self.data[start + rows.start..start + rows.end]
    }
}

/// Returns the rows, the inner elements and the columns of products.
///
/// # Panics
///
/// If the inner axes or the numbers of matrices differ.
pub fn size_of<T>(lhs: &Matrices<T>, rhs: &Matrices<T>) -> [usize; 3] {
    assert_eq!(lhs.cols, rhs.rows, "products: the inner axes differ");
    assert_eq!(lhs.starts.len(), rhs.starts.len(), "products: the numbers of matrices differ");
    [lhs.rows, lhs.cols, rhs.cols]
}
