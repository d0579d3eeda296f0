//! Counts the memory of a thread.

#![allow(unsafe_code)] // `GlobalAlloc` is an unsafe trait; the methods below only forward calls.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    // They have constant initial values and no destructor, so they never allocate.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, which counts each thread's live bytes and their peak.
pub struct Counting;

fn change(bytes: isize) {
    LIVE.with(|live| {
        live.set(live.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(live.get())));
    });
}

/// Returns the peak of the bytes that `work` allocates in this thread, and its result.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (usize::try_from(PEAK.get() - before).unwrap_or(0), result)
}

// SAFETY: every call is passed to the system's allocator with its arguments unchanged, so its
// guarantees are kept; the counters never allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        change(layout.size() as isize);
        // SAFETY: the caller's promise about `layout`, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        change(layout.size() as isize);
        // SAFETY: the caller's promise about `layout`, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        change(-(layout.size() as isize));
        // SAFETY: the caller's promise about `pointer` and `layout`, passed on.
        unsafe { System.dealloc(pointer, layout) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist while the data is copied.
        change(size as isize);
        change(-(layout.size() as isize));
        // SAFETY: the caller's promise about the arguments, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
