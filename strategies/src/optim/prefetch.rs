//! Inference memory for what an update reads soon.
//!
//! A processor does so by itself, but not across the end of a page. An update goes through four streams of pages
//! at once, and would wait at the beginning of each.
#![allow(unsafe_code)] // The instruction has no safe name in the standard library.

/// Floats of a cache line.
const LINE: usize = 16;

/// Floats from what is computed to what is asked for: it arrives in about the time that the computing takes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 512;

/// Asks for the line that comes a little after this one, on processors that can be asked.
#[inline(always)]
pub(super) fn prefetch(line: &[f32; LINE]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it is a hint: what is read goes into a cache alone, and no address is an error.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
