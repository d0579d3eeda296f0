//! Prefetching of memory for the update.
//!
//! A processor prefetches by itself, but not across the end of a page. An update reads four streams of pages at once,
//! and would wait at the start of each page.
#![allow(unsafe_code)] // The instruction has no safe name in the standard library.

/// Floats of a cache line.
const LINE: usize = 16;

/// Floats between the current line and the prefetched one: it arrives in about the time that the computation takes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 512;

/// Prefetches the line `AHEAD` floats after this one, on processors that support it.
#[inline(always)]
pub(super) fn prefetch(line: &[f32; LINE]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: this is a hint that only reads into a cache, and no address is an error.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
