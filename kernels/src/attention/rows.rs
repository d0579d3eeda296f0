//! Blocks of rows of one buffer, each written by one task.
#![allow(unsafe_code)] // Rows of one block are apart in memory, so that a slice cannot be split between tasks.

use std::marker::PhantomData;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use super::spans::{LINE, Spans};

/// Vectors of `size` elements in a buffer that has the axes `[batch, heads, positions, size]` in some order, with `size`
/// last, in blocks of [`LINE`] positions.
pub struct Rows<'a, T> {
    buffer: *mut T,
    spans: &'a Spans,
    heads: usize,
    size: usize,
    /// The strides of the first three axes.
    strides: [usize; 3],
    taken: Vec<AtomicBool>,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: tasks only reach elements through a `Block`; a block is taken once, and two blocks share no element.
unsafe impl<T: Send> Sync for Rows<'_, T> {}
// SAFETY: the pointer stands for a `&mut [T]`, which can be sent if T can.
unsafe impl<T: Send> Send for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// The vectors of `[batch, positions, heads, size]`.
    pub fn by_position(buffer: &'a mut [T], spans: &'a Spans, heads: usize, size: usize) -> Self {
        let [_, positions] = spans.shape();
        Self::of(buffer, spans, heads, size, [positions * heads * size, size, heads * size])
    }

    /// The vectors of `[batch, heads, positions, size]`.
    pub fn by_head(buffer: &'a mut [T], spans: &'a Spans, heads: usize, size: usize) -> Self {
        let [_, positions] = spans.shape();
        Self::of(buffer, spans, heads, size, [heads * positions * size, positions * size, size])
    }

    fn of(buffer: &'a mut [T], spans: &'a Spans, heads: usize, size: usize, strides: [usize; 3]) -> Self {
        let [batch, positions] = spans.shape();
        assert_eq!(buffer.len(), batch * heads * positions * size, "the elements of all rows and heads");
        let taken = (0..heads * spans.all_blocks()).map(|_| AtomicBool::new(false)).collect();
        Self { buffer: buffer.as_mut_ptr(), spans, heads, size, strides, taken, lifetime: PhantomData }
    }

    /// The elements of a vector.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The first position of each block of a row.
    pub fn blocks(&self, row: usize) -> impl Iterator<Item = usize> + use<T> {
        (0..self.spans.length(row)).step_by(LINE)
    }

    /// Takes the block of a head from a position of a row, which must be a multiple of [`LINE`].
    ///
    /// # Panics
    ///
    /// If the block was taken before, or doesn't exist.
    pub fn take(&self, row: usize, head: usize, position: usize) -> Block<'_, T> {
        let Self { spans, heads, .. } = *self;
        let exists = row < spans.rows()
            && head < heads
            && position < spans.length(row)
            && position.is_multiple_of(LINE);
        assert!(exists, "no block [{row}, {head}, {position}] in {heads} heads of {spans:?}");
        let block = spans.index([row, head, position / LINE], heads);
        assert!(!self.taken[block].swap(true, Ordering::Relaxed), "a block is written twice");
        let [of_row, of_head, of_position] = self.strides;
        let [stored_row, stored] = spans.place(row, position);
        Block {
            rows: self,
            start: stored_row * of_row + head * of_head + stored * of_position,
            length: LINE.min(spans.length(row) - position),
        }
    }
}

/// A block that was taken.
pub struct Block<'a, T> {
    rows: &'a Rows<'a, T>,
    start: usize,
    length: usize,
}

impl<T> Block<'_, T> {
    /// The number of positions.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the vector of a position.
    ///
    /// # Panics
    ///
    /// If there are fewer positions.
    pub fn row(&mut self, at: usize) -> &mut [T] {
        assert!(at < self.length, "no position {at} among {}", self.length);
        let start = self.start + at * self.rows.strides[2];
        // SAFETY: `take` checked that the block exists and `of` that the buffer has all elements of the shape, whose
        // strides are a permutation of contiguous ones, so the vector is inside the buffer and shares no element with
        // another one; `Spans` places positions of different rows apart. No other block has this vector, since a block
        // is taken once; and this one lends one vector at a time, as it is borrowed mutably. The buffer outlives
        // `rows`, which borrows it mutably.
        unsafe { slice::from_raw_parts_mut(self.rows.buffer.add(start), self.rows.size) }
    }
}
