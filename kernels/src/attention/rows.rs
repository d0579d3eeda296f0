//! Blocks of rows of one buffer, each written by one task.
#![allow(unsafe_code)] // Rows of one block are apart in memory, so that a slice cannot be split between tasks.

use std::marker::PhantomData;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows of a buffer that has the axes `[batch, heads, positions, size]` in some order, with `size` last.
pub struct Rows<'a, T> {
    buffer: *mut T,
    shape: [usize; 4],
    /// The strides of the first three axes.
    strides: [usize; 3],
    /// Positions of a block.
    length: usize,
    taken: Vec<AtomicBool>,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: tasks only reach elements through a `Block`; a block is taken once, and two blocks share no element.
unsafe impl<T: Send> Sync for Rows<'_, T> {}
// SAFETY: the pointer stands for a `&mut [T]`, which can be sent if T can.
unsafe impl<T: Send> Send for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// The rows of `[batch, positions, heads, size]`, in blocks of `length` positions of a head.
    pub fn by_position(buffer: &'a mut [T], shape: [usize; 4], length: usize) -> Self {
        let [_, heads, positions, size] = shape;
        Self::of(buffer, shape, [positions * heads * size, size, heads * size], length)
    }

    /// The rows of `[batch, heads, positions, size]`, in blocks of `length` positions of a head.
    pub fn by_head(buffer: &'a mut [T], shape: [usize; 4], length: usize) -> Self {
        let [_, heads, positions, size] = shape;
        Self::of(buffer, shape, [heads * positions * size, positions * size, size], length)
    }

    fn of(buffer: &'a mut [T], shape: [usize; 4], strides: [usize; 3], length: usize) -> Self {
        let [batch, heads, positions, size] = shape;
        assert_eq!(buffer.len(), batch * heads * positions * size, "the elements of {shape:?}");
        let blocks = batch * heads * positions.div_ceil(length);
        let taken = (0..blocks).map(|_| AtomicBool::new(false)).collect();
        Self { buffer: buffer.as_mut_ptr(), shape, strides, length, taken, lifetime: PhantomData }
    }

    /// The elements of a row.
    pub fn size(&self) -> usize {
        self.shape[3]
    }

    /// The first position of each block of a head.
    pub fn blocks(&self) -> impl Iterator<Item = usize> + use<T> {
        (0..self.shape[2]).step_by(self.length)
    }

    /// Takes the block of a head from a position, which must be a multiple of the block's length.
    ///
    /// # Panics
    ///
    /// If the block was taken before, or doesn't exist.
    pub fn take(&self, row: usize, head: usize, position: usize) -> Block<'_, T> {
        let [batch, heads, positions, _] = self.shape;
        let exists =
            row < batch && head < heads && position < positions && position.is_multiple_of(self.length);
        assert!(exists, "no block [{row}, {head}, {position}] in {:?}", self.shape);
        let block = (row * heads + head) * positions.div_ceil(self.length) + position / self.length;
        assert!(!self.taken[block].swap(true, Ordering::Relaxed), "a block is written twice");
        let [of_row, of_head, of_position] = self.strides;
        Block {
            rows: self,
            start: row * of_row + head * of_head + position * of_position,
            length: self.length.min(positions - position),
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
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns a row.
    ///
    /// # Panics
    ///
    /// If there are fewer rows.
    pub fn row(&mut self, at: usize) -> &mut [T] {
        assert!(at < self.length, "no row {at} among {}", self.length);
        let start = self.start + at * self.rows.strides[2];
        // SAFETY: `take` checked that the block exists and `of` that the buffer has all elements of the shape, whose
        // strides are a permutation of contiguous ones, so the row is inside the buffer and shares no element with
        // another row. No other block has this row, since a block is taken once; and this one lends one row at a time,
        // as it is borrowed mutably. The buffer outlives `rows`, which borrows it mutably.
        unsafe { slice::from_raw_parts_mut(self.rows.buffer.add(start), self.rows.shape[3]) }
    }
}
