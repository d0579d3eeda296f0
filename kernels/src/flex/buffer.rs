//! Memory of a new tensor, written in parts on all cores.
//!
//! Filling it with zeros first would take one core as long as the computation takes all of them.
#![allow(unsafe_code)] // Memory is only read as initialized after each element of it was written.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;
use rayon::prelude::*;

/// A vector of a fixed length that is written in parts.
pub(crate) struct Buffer<T> {
    memory: Vec<T>,
    length: usize,
    written: AtomicUsize,
}

/// The part of a [`Buffer`] that one task writes.
pub(crate) struct Part<'a, T> {
    memory: &'a mut [MaybeUninit<T>],
    /// Elements written by the task. They are added to those of the buffer once.
    written: Cell<usize>,
    of_buffer: &'a AtomicUsize,
}

/// Elements of a [`Part`] that are written together.
pub(crate) struct Fresh<'a, T> {
    memory: &'a mut [MaybeUninit<T>],
    written: &'a Cell<usize>,
}

impl<T: Pod + Send> Buffer<T> {
    pub fn new(length: usize) -> Self {
        Self { memory: Vec::with_capacity(length), length, written: AtomicUsize::new(0) }
    }

    /// Returns the parts of `size` elements; the last may be shorter.
    pub fn parts(&mut self, size: usize) -> impl IndexedParallelIterator<Item = Part<'_, T>> {
        // What was written before does not count: if it were written again, the sum would hide a gap.
        *self.written.get_mut() = 0;
        let of_buffer = &self.written;
        let memory = &mut self.memory.spare_capacity_mut()[..self.length];
        let parts = memory.par_chunks_mut(size.max(1));
        parts.map(move |memory| Part { memory, written: Cell::new(0), of_buffer })
    }

    /// Returns the elements.
    ///
    /// # Panics
    ///
    /// If an element was not written.
    pub fn finish(mut self) -> Vec<T> {
        let written = *self.written.get_mut();
        assert_eq!(written, self.length, "each element of a buffer must be written");
        // SAFETY: `written` counts elements of one call of `parts`, and of one call of `pieces` of each part. These do
        // not overlap, and count after they were written. So `length` elements were written, which are all; the
        // capacity is at least that.
        unsafe { self.memory.set_len(self.length) };
        self.memory
    }
}

impl<T: Pod> Part<'_, T> {
    /// Returns pieces of `size` elements; the last may be shorter.
    #[inline(always)]
    pub fn pieces(&mut self, size: usize) -> impl Iterator<Item = Fresh<'_, T>> {
        self.written.set(0);
        let written = &self.written;
        self.memory.chunks_mut(size.max(1)).map(move |memory| Fresh { memory, written })
    }
}

impl<T> Drop for Part<'_, T> {
    fn drop(&mut self) {
        self.of_buffer.fetch_add(self.written.get(), Ordering::Relaxed);
    }
}

impl<'a, T: Pod> Fresh<'a, T> {
    /// Copies the elements, and returns them.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    #[inline(always)]
    pub fn copy(self, from: &[T]) -> &'a mut [T] {
        let to = self.memory.write_copy_of_slice(from);
        self.written.set(self.written.get() + to.len());
        to
    }

    /// Writes each of the `length` elements, given its index, and returns them.
    ///
    /// The loop is vectorized if `of` reads slices that were cut to `length`: then no bounds need checks.
    ///
    /// # Panics
    ///
    /// If there are not `length` elements.
    #[inline(always)]
    pub fn write(self, length: usize, of: impl Fn(usize) -> T) -> &'a mut [T] {
        assert_eq!(self.memory.len(), length, "the elements of a piece are written together");
        for (at, element) in self.memory[..length].iter_mut().enumerate() {
            element.write(of(at));
        }
        self.written.set(self.written.get() + length);
        // SAFETY: the loop above wrote each element.
        unsafe { self.memory.assume_init_mut() }
    }
}
