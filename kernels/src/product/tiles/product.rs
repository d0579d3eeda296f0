//! One product: its panels, and the tasks that compute its tiles.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::instructions::{Instructions, Out, TilePlace};
use super::vectors::Vectors;
use crate::flex::Lane;
use crate::memory::apart;

/// Multiplications that are worth a task of their own: some tens of microseconds.
pub const TASK: usize = 1 << 21;

/// Panels that are packed together, if they are not so short that even more are.
const PANELS: usize = 8;

/// Words that are worth a task of packing.
const PACKED: usize = 1 << 15;

/// Bytes of the left panels that a task reads for each panel of the right operand.
const LEFT: usize = 1 << 18;

/// One product.
pub struct Product<'a, T> {
    pub left: Vectors<T>,
    pub right: Vectors<T>,
    pub out: Out<'a, T>,
}

impl<T: Lane> Product<'_, T> {
    /// Writes the product by rows, on all cores or on this thread.
    pub fn compute<I: Instructions<T>>(&self, on_all: bool) {
        let words = self.left.inner.div_ceil(I::IN_WORD);
        let (left, right) = {
            // Like gemmkit's panels, they are memory of the process, not of the pass.
            let _apart = apart();
            // SAFETY: a panel has the size, and begins with an existing vector; `Matrices::new` checked that the elements
            // are inside the storage; the processor has the instructions, or there would be no product.
            unsafe {
                (
                    packed(self.left.count, [I::ROWS, words], on_all, |at, to| {
                        I::pack_rows(&self.left, at, to)
                    }),
                    packed(self.right.count, [I::COLUMNS, words], on_all, |at, to| {
                        I::pack_columns(&self.right, at, to)
                    }),
                )
            }
        };
        let (rows, columns) = (self.left.count.div_ceil(I::ROWS), self.right.count.div_ceil(I::COLUMNS));
        // A task is a block of panels by panels.
        let height = (LEFT / (4 * I::ROWS * words)).clamp(1, 8);
        let width = (TASK / (I::IN_WORD * words * height * I::ROWS * I::COLUMNS)).max(1).min(columns);
        let (down, across) = (rows.div_ceil(height), columns.div_ceil(width));
        let block = |at: usize| {
            let (row, column) = (at / across * height, at % across * width);
            for column in column..(column + width).min(columns) {
                for row in row..(row + height).min(rows) {
                    self.tile::<I>(&left, &right, [row, column], words);
                }
            }
        };
        match on_all {
            true => (0..down * across).into_par_iter().for_each(block),
            false => (0..down * across).for_each(block),
        }
        let _apart = apart();
        drop((left, right));
    }

    /// Computes the tile of two panels.
    fn tile<I: Instructions<T>>(
        &self,
        left: &[MaybeUninit<u32>],
        right: &[MaybeUninit<u32>],
        [row, column]: [usize; 2],
        words: usize,
    ) {
        let left = &left[row * I::ROWS * words..][..I::ROWS * words];
        let right = &right[column * I::COLUMNS * words..][..I::COLUMNS * words];
        let (first, stride) = (column * I::COLUMNS, self.right.count);
        let size = [I::ROWS.min(self.left.count - row * I::ROWS), I::COLUMNS.min(stride - first)];
        // SAFETY: the processor has the instructions, or there would be no product; the slices have a whole panel each,
        // which `packed` has initialized; the tile's rows and columns are inside the product.
        unsafe {
            let out = self.out.at(row * I::ROWS * stride + first, first);
            I::tile(words, left.as_ptr().cast(), right.as_ptr().cast(), out, TilePlace { size, stride });
        }
    }
}

/// Returns the panels of `count` vectors, each of `width` vectors of `words`. `pack` writes some panels, the first of which
/// begins with a vector.
///
/// # Safety
///
/// `pack` initializes every word.
unsafe fn packed(
    count: usize,
    [width, words]: [usize; 2],
    on_all: bool,
    pack: impl Fn(usize, &mut [MaybeUninit<u32>]) + Sync,
) -> Vec<MaybeUninit<u32>> {
    let panel = width * words;
    let length = panel * count.div_ceil(width);
    let mut panels = Vec::with_capacity(length);
    // SAFETY: the elements may be uninitialized.
    unsafe { panels.set_len(length) };
    let together = (PACKED / panel).max(PANELS);
    let pack = |(at, panels): (usize, &mut [MaybeUninit<u32>])| pack(at * together * width, panels);
    match on_all {
        true => panels.par_chunks_mut(together * panel).enumerate().for_each(pack),
        false => pack((0, &mut panels)),
    }
    panels
}
