//! The allocator that counts.

#![allow(unsafe_code)] // A global allocator is an unsafe trait; each block below says why it is sound.

use std::alloc::{GlobalAlloc, Layout, System};

use super::account::{Counters, PROCESS, current, of};

/// The system's allocator, counting the bytes that are live and the most that ever were, of the
/// process and of each [`Account`](super::Account).
///
/// A program that wants the CPU's numbers in its reports installs it, as `firebrick` does:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: firebrick_strategies::memory::Counting = firebrick_strategies::memory::Counting;
///
/// let before = firebrick_strategies::memory::Usage::of_process().unwrap();
/// let megabyte = vec![1u8; 1 << 20];
/// let after = firebrick_strategies::memory::Usage::of_process().unwrap();
/// assert!(after.live >= before.live + megabyte.len());
/// ```
///
/// Each block is preceded by a header of 16 bytes, or of the block's alignment where that is more,
/// which says on whose account it is: whichever thread frees it, that account is credited. The header
/// itself is not counted.
#[derive(Debug)]
pub struct Counting;

/// Bytes before a block: they keep its alignment, and that of the system's allocator.
fn header(layout: Layout) -> usize {
    layout.align().max(16)
}

/// Of the header and the block. `None` where no address space holds both.
fn with_header(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(header(layout))?;
    Layout::from_size_align(size, layout.align()).ok()
}

impl Counters {
    /// So many more bytes, of this account and of the process.
    fn grow(&self, bytes: usize) {
        PROCESS.add(bytes);
        if !self.are_of_process() {
            self.add(bytes);
        }
    }

    /// So many bytes fewer, of this account and of the process.
    fn shrink(&self, bytes: usize) {
        PROCESS.remove(bytes);
        if !self.are_of_process() {
            self.remove(bytes);
        }
    }
}

/// Notes whose block it is, and returns where the block begins.
///
/// # Safety
///
/// `start` is null, or begins an allocation of `with_header(layout)`.
unsafe fn begin(start: *mut u8, layout: Layout) -> *mut u8 {
    if start.is_null() {
        return start;
    }
    let account = current();
    // SAFETY: the header, at least 16 bytes, and the block after it are within the allocation.
    let block = unsafe { start.add(header(layout)) };
    // SAFETY: the byte before the block is the header's last, and any byte may hold a `u8`.
    unsafe { block.sub(1).write(account) };
    of(account).grow(layout.size());
    block
}

/// Whose block it is.
///
/// # Safety
///
/// `block` came from [`begin`].
unsafe fn account_of(block: *mut u8) -> &'static Counters {
    // SAFETY: `begin` wrote the byte before the block, and only the block is lent out.
    of(unsafe { block.sub(1).read() })
}

// SAFETY: every call is passed to the system's allocator with a layout that is larger by the header,
// the same one for the same block each time, and of the same alignment; blocks begin after the header,
// a multiple of their alignment, and have the size asked for. Counting neither allocates nor panics:
// it is atomics, and a thread-local byte that needs no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_header(layout) else { return std::ptr::null_mut() };
        // SAFETY: `whole` is a layout of 16 bytes at least.
        let start = unsafe { System.alloc(whole) };
        // SAFETY: that is what `start` was allocated with.
        unsafe { begin(start, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_header(layout) else { return std::ptr::null_mut() };
        // SAFETY: `whole` is a layout of 16 bytes at least.
        let start = unsafe { System.alloc_zeroed(whole) };
        // SAFETY: that is what `start` was allocated with.
        unsafe { begin(start, layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // A layout that was allocated had room for its header.
        let Some(whole) = with_header(layout) else { return };
        // SAFETY: the caller's promise is that `block` came from this allocator, and so from `begin`.
        unsafe { account_of(block) }.shrink(layout.size());
        // SAFETY: the allocation begins a header before its block, and was made with `whole`.
        unsafe { System.dealloc(block.sub(header(layout)), whole) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(after) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        let (Some(whole), Some(whole_after)) = (with_header(layout), with_header(after)) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the caller's promise is that `block` came from this allocator, and so from `begin`.
        let account = unsafe { account_of(block) };
        // SAFETY: the allocation begins a header before its block, and was made with `whole`; the new
        // size is not zero, and a layout holds it.
        let start = unsafe { System.realloc(block.sub(header(layout)), whole, whole_after.size()) };
        if start.is_null() {
            return start;
        }
        account.grow(size);
        account.shrink(layout.size());
        // SAFETY: the alignment is as before, so the header is as large, and what it says was moved
        // along with the block.
        unsafe { start.add(header(layout)) }
    }
}
