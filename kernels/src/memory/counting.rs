//! The counting allocator.

#![allow(unsafe_code)] // A global allocator is an unsafe trait; each block below is justified.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::account::{Counters, PROCESS, current, may_be_tensor, of};
use super::allocations::{Kind, note};
use super::in_transit::has_left;

/// The system's allocator, with a count of the live bytes and their peak, for the process and for each
/// [`Account`](super::Account).
///
/// Install it if your program's reports should include CPU memory, as `firebrick` does:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: firebrick_kernels::memory::Counting = firebrick_kernels::memory::Counting;
///
/// let before = firebrick_kernels::memory::Usage::of_process().unwrap();
/// let megabyte = vec![1u8; 1 << 20];
/// let after = firebrick_kernels::memory::Usage::of_process().unwrap();
/// assert!(after.live >= before.live + megabyte.len());
/// ```
///
/// A header precedes each block, of 16 bytes or of the block's alignment if that is larger. It stores the block's
/// account, which is credited whichever thread frees the block. The header itself is not counted.
#[derive(Debug)]
pub struct Counting;

/// Set once the system has given no memory for a block, if somebody asked to know.
static FAILED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Returns a flag that is set once the system has given no memory for a block of [`Counting`]. Some callers go on without
/// it; where Rust cannot, the process is about to abort.
pub fn has_failed() -> Arc<AtomicBool> {
    FAILED.get_or_init(Arc::default).clone()
}

/// Notes that there is no memory, and returns null.
#[cold]
fn failed() -> *mut u8 {
    if let Some(failed) = FAILED.get() {
        failed.store(true, Relaxed);
    }
    std::ptr::null_mut()
}

/// Returns the bytes before a block, which preserve its alignment and that of the system's allocator.
fn header(layout: Layout) -> usize {
    layout.align().max(16)
}

/// Returns the layout of the header and the block, or `None` if it exceeds the address space.
fn with_header(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(header(layout))?;
    Layout::from_size_align(size, layout.align()).ok()
}

impl Counters {
    /// Adds bytes of a block to this account and to the process.
    fn grow(&self, bytes: usize, layout: Layout) {
        PROCESS.add(bytes, may_be_tensor(layout));
        if !self.are_of_process() {
            self.add(bytes, may_be_tensor(layout));
            if may_be_tensor(layout) {
                note(self, Kind::Allocated, bytes);
            }
        }
    }

    /// Removes a block from this account and from the process.
    fn shrink(&self, layout: Layout) {
        PROCESS.remove(layout.size(), may_be_tensor(layout));
        if !self.are_of_process() && !has_left(self, layout) {
            self.leave(layout);
        }
    }

    /// Removes a block from this account alone.
    pub(super) fn leave(&self, layout: Layout) {
        self.remove(layout.size(), may_be_tensor(layout));
        if may_be_tensor(layout) {
            note(self, Kind::Freed, layout.size());
        }
    }
}

/// Stores the block's account, and returns the start of the block.
///
/// # Safety
///
/// `start` is null, or begins an allocation of `with_header(layout)`.
unsafe fn begin(start: *mut u8, layout: Layout) -> *mut u8 {
    if start.is_null() {
        return failed();
    }
    let account = current();
    // SAFETY: the header, at least 16 bytes, and the block after it are within the allocation.
    let block = unsafe { start.add(header(layout)) };
    // SAFETY: the byte before the block is the header's last, and any byte may hold a `u8`.
    unsafe { block.sub(1).write(account) };
    of(account).grow(layout.size(), layout);
    block
}

/// Returns the account of a block.
///
/// # Safety
///
/// `block` came from [`begin`].
unsafe fn account_of(block: *mut u8) -> &'static Counters {
    // SAFETY: `begin` wrote the byte before the block, and callers only access the block.
    of(unsafe { block.sub(1).read() })
}

// SAFETY: every call passes to the system's allocator a layout that is larger by the header, the same one for the same
// block each time, and of the same alignment. Blocks begin after the header, a multiple of their alignment, and have
// the requested size. Counting neither allocates nor panics: it uses atomics, and a thread-local byte that needs no
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_header(layout) else { return failed() };
        // SAFETY: `whole` is a layout of at least 16 bytes.
        let start = unsafe { System.alloc(whole) };
        // SAFETY: `start` was allocated with this layout.
        unsafe { begin(start, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_header(layout) else { return failed() };
        // SAFETY: `whole` is a layout of at least 16 bytes.
        let start = unsafe { System.alloc_zeroed(whole) };
        // SAFETY: `start` was allocated with this layout.
        unsafe { begin(start, layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // The layout of an allocated block always has room for its header.
        let Some(whole) = with_header(layout) else { return };
        // SAFETY: the caller guarantees that `block` came from this allocator, and so from `begin`.
        unsafe { account_of(block) }.shrink(layout);
        // SAFETY: the allocation begins a header before its block, and was made with `whole`.
        unsafe { System.dealloc(block.sub(header(layout)), whole) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(after) = Layout::from_size_align(size, layout.align()) else { return failed() };
        let (Some(whole), Some(whole_after)) = (with_header(layout), with_header(after)) else {
            return failed();
        };
        // SAFETY: the caller guarantees that `block` came from this allocator, and so from `begin`.
        let account = unsafe { account_of(block) };
        // SAFETY: the allocation begins a header before its block, and was made with `whole`; the new size is nonzero
        // and fits a layout.
        let start = unsafe { System.realloc(block.sub(header(layout)), whole, whole_after.size()) };
        if start.is_null() {
            return failed();
        }
        account.grow(size, layout);
        account.shrink(layout);
        // SAFETY: the alignment is unchanged, so the header has the same size, and its content moved along with the
        // block.
        unsafe { start.add(header(layout)) }
    }
}
