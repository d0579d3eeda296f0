//! The rows of a left operand, or the columns of a right one.

use super::super::gemm::Matrices;

/// Vectors along the inner axis of a product.
#[derive(Clone, Copy)]
pub struct Vectors<T> {
    /// The first element.
    pub start: *const T,
    /// The number of vectors.
    pub count: usize,
    /// Elements from a vector to the next one.
    pub stride: usize,
    /// The number of elements of each vector.
    pub inner: usize,
    /// Elements between neighbours within a vector.
    pub step: usize,
}

// SAFETY: the elements are only read; whoever creates it has borrowed them.
unsafe impl<T: Sync> Sync for Vectors<T> {}

impl<T> Vectors<T> {
    /// The rows of a matrix.
    pub fn rows(of: &Matrices<T>, matrix: usize) -> Self {
        let &Matrices { rows, cols, row_stride, col_stride, .. } = of;
        let start = of.at(matrix, 0, 0);
        Self { start, count: rows, stride: row_stride, inner: cols, step: col_stride }
    }

    /// The columns of a matrix.
    pub fn columns(of: &Matrices<T>, matrix: usize) -> Self {
        let &Matrices { rows, cols, row_stride, col_stride, .. } = of;
        let start = of.at(matrix, 0, 0);
        Self { start, count: cols, stride: col_stride, inner: rows, step: row_stride }
    }

    /// Returns a part of each vector.
    pub fn part(self, from: usize, inner: usize) -> Self {
        Self { start: self.start.wrapping_add(from * self.step), inner, ..self }
    }
}
