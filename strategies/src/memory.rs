//! Bytes in use: of the process on the CPU, of the device's pool elsewhere.

#![allow(unsafe_code)] // A global allocator is an unsafe trait; the calls below only pass through.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::tensor::Device;

static LIVE: AtomicUsize = AtomicUsize::new(0);
/// The most live bytes since the last [`Beyond`] was read.
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// The most before that, since the last [`reset_peak`].
static EARLIER_PEAK: AtomicUsize = AtomicUsize::new(0);
/// The highest look at a device's pool since the last [`Beyond`] was read.
static LOOK: AtomicUsize = AtomicUsize::new(0);
/// The highest look before that, since the last [`reset_peak`].
static EARLIER_LOOK: AtomicUsize = AtomicUsize::new(0);
/// Bytes of parameters' gradients that recomputed segments have left in this backward pass.
static GRADIENTS: AtomicUsize = AtomicUsize::new(0);
/// The most bytes beyond those gradients, in the parts of the pass that are over.
static MOST_BEYOND: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting the bytes that are live and the most that ever were.
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
#[derive(Debug)]
pub struct Counting;

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call is passed to the system's allocator with its arguments unchanged, so its
// guarantees are kept; the counters are atomics and never allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout`, passed on.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            grow(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout`, passed on.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            grow(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise about `pointer` and `layout`, passed on.
        unsafe { System.dealloc(pointer, layout) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise about the arguments, passed on.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        if !moved.is_null() {
            grow(size);
            LIVE.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }
}

/// Bytes in use, and the most that were since the last [`reset_peak`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated now.
    pub live: usize,
    /// The highest value of `live`. A device's pool reports no peak: there it is the highest that was
    /// ever looked at, which happens after each forward pass, after each re-run of a segment, and
    /// before and after each update.
    pub peak: usize,
}

impl Usage {
    /// The process's heap, where [`Counting`] is installed.
    pub fn of_process() -> Option<Self> {
        let peak = PEAK.load(Relaxed).max(EARLIER_PEAK.load(Relaxed));
        let live = LIVE.load(Relaxed);
        (peak > 0).then_some(Self { live, peak })
    }

    /// The pool of a device that has one, and the process's heap otherwise. `None` where neither
    /// is counted.
    pub fn of(device: &Device) -> Option<Self> {
        match device.memory_pool_usage() {
            Some(pool) => {
                let live = usize::try_from(pool.bytes_in_use).unwrap_or(usize::MAX);
                let peak = LOOK.fetch_max(live, Relaxed).max(live).max(EARLIER_LOOK.load(Relaxed));
                Some(Self { live, peak })
            }
            None => Self::of_process(),
        }
    }
}

/// Bytes in use once a device has done all that it was given, which may allocate. `None` where
/// nothing counts them.
pub fn in_use(device: &Device) -> Option<usize> {
    device.sync().ok()?;
    Usage::of(device).map(|usage| usage.live)
}

/// Bytes of memory that the machine has, where the system tells.
pub fn of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Forgets the peak: it starts again from what is live now.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
    for peak in [&EARLIER_PEAK, &LOOK, &EARLIER_LOOK] {
        peak.store(0, Relaxed);
    }
}

/// Measures a forward and backward pass: the most bytes in use beyond those in use before it and
/// beyond the parameters' gradients that it leaves.
///
/// Of the gradients it knows those of recomputed segments, each from when it is there: they grow
/// while the activations shrink. It measures the process, so two at once disturb each other.
#[derive(Debug)]
pub struct Beyond {
    before: usize,
}

impl Beyond {
    /// A pass begins.
    pub fn begin(device: &Device) -> Self {
        let before = Usage::of(device).map_or(0, |usage| usage.live);
        take_peak(device);
        GRADIENTS.store(0, Relaxed);
        MOST_BEYOND.store(0, Relaxed);
        Self { before }
    }

    /// A recomputed segment has left gradients of so many bytes.
    pub(crate) fn left(gradients: usize, device: &Device) {
        let beyond = take_peak(device).saturating_sub(GRADIENTS.fetch_add(gradients, Relaxed));
        MOST_BEYOND.fetch_max(beyond, Relaxed);
    }

    /// The pass is over.
    pub fn end(self, device: &Device) -> usize {
        Self::left(0, device);
        MOST_BEYOND.load(Relaxed).saturating_sub(self.before)
    }
}

/// The peak since the last call, after which it starts again from what is live.
fn take_peak(device: &Device) -> usize {
    match device.memory_pool_usage() {
        Some(_) => {
            Usage::of(device);
            let look = LOOK.swap(0, Relaxed);
            EARLIER_LOOK.fetch_max(look, Relaxed);
            look
        }
        None => {
            let peak = PEAK.swap(LIVE.load(Relaxed), Relaxed);
            EARLIER_PEAK.fetch_max(peak, Relaxed);
            peak
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;

    use super::*;
    use crate::testing;

    #[test]
    fn a_device_with_a_pool_counts_its_tensors_in_it() {
        let device = testing::device();
        if device.memory_pool_usage().is_none() {
            // No allocator counts in this test program, so that nothing is known of the CPU.
            assert_eq!((Usage::of(&device), Usage::of_process()), (None, None));
            return;
        }
        // Far more than other tests use at the same time.
        let bytes = 64 << 20;
        let before = Usage::of(&device).unwrap().live;
        let tensor = Tensor::<1>::zeros([bytes / 4], &device);
        device.sync().unwrap();
        let with = Usage::of(&device).unwrap().live;
        assert!(with > before + bytes / 2, "{before} {with}");
        drop(tensor);
        device.sync().unwrap();
        let after = Usage::of(&device).unwrap().live;
        assert!(after < before + bytes / 2, "{before} {after}");
    }
}
