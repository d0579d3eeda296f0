//! What a set of instructions must do to multiply panels.

use std::mem::MaybeUninit;

use super::super::matrices::Matrices;

/// Instructions that multiply panels of elements `T`.
///
/// # Safety
///
/// The methods may only be called if the processor has the instructions. A panel is a word of each of its vectors,
/// [`ROWS`](Self::ROWS) or [`COLUMNS`](Self::COLUMNS), for each of the words of a vector; all elements of an operand are
/// readable, and each panel that is packed begins with one of its vectors.
pub trait Instructions<T> {
    /// Rows of a tile.
    const ROWS: usize;
    /// Columns of a tile.
    const COLUMNS: usize;
    /// Elements of a word: neighbours within a vector. The last word is filled up with zeros.
    const IN_WORD: usize;

    /// Packs rows into whole panels, from `first` on. Those beyond the last are 0.
    unsafe fn pack_rows(rows: &Vectors<T>, first: usize, panels: &mut [MaybeUninit<u32>]);

    /// Packs columns into whole panels, from `first` on. Those beyond the last are 0.
    unsafe fn pack_columns(columns: &Vectors<T>, first: usize, panels: &mut [MaybeUninit<u32>]);

    /// Multiplies two panels and writes the tile.
    unsafe fn tile(words: usize, left: *const u32, right: *const u32, out: Out<'_, T>, place: TilePlace);
}

/// The place of a tile in the product.
#[derive(Clone, Copy)]
pub struct TilePlace {
    /// Its rows and columns, up to those of a whole tile.
    pub size: [usize; 2],
    /// Elements between the rows of the product.
    pub stride: usize,
}

/// The first element of a product or a tile, and how it is written.
pub enum Out<'a, T> {
    /// Rounded after the bias is added. The bias is in f32, padded with zeros to a whole tile.
    Rounded(*mut T, Option<&'a [f32]>),
    /// In f32. If true, the product is added to what is there.
    Wide(*mut f32, bool),
}

impl<T> Out<'_, T> {
    /// The tile that begins `at` elements from the first one, in this column.
    ///
    /// # Safety
    ///
    /// The element is inside the product.
    pub unsafe fn at(&self, at: usize, column: usize) -> Self {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::Rounded(to, bias) => Self::Rounded(to.add(at), bias.map(|bias| &bias[column..])),
                Self::Wide(to, adds) => Self::Wide(to.add(at), *adds),
            }
        }
    }
}

// SAFETY: threads write tiles, no two of which overlap.
unsafe impl<T: Send> Sync for Out<'_, T> {}

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
