//! Bytes in use: of the process on the CPU, or of a rank's account in it; of the device's pool elsewhere.

mod account;
mod counting;
mod freed;
mod storages;

use std::sync::atomic::Ordering::Relaxed;

use burn::tensor::{Device, Tensor};

pub use account::{Account, Entered};
pub use counting::Counting;
pub use freed::keep_freed;
pub use storages::Storages;

use account::{Counters, PROCESS};

/// What this thread measures: its account, or the process.
fn measured() -> &'static Counters {
    account::of(account::current())
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
    /// The process's heap, or this thread's [`Account`] where it has entered one; where [`Counting`]
    /// is installed.
    pub fn of_process() -> Option<Self> {
        measured().usage()
    }

    /// The process's heap, all accounts included, where [`Counting`] is installed.
    pub fn of_all_accounts() -> Option<Self> {
        PROCESS.usage()
    }

    /// The pool of a device that has one, and otherwise [that of the process](Self::of_process).
    /// `None` where neither is counted.
    pub fn of(device: &Device) -> Option<Self> {
        match device.memory_pool_usage() {
            Some(pool) => {
                let live = usize::try_from(pool.bytes_in_use).unwrap_or(usize::MAX);
                let looks = measured();
                let highest = looks.look.fetch_max(live, Relaxed).max(live);
                let peak = highest.max(looks.earlier_look.load(Relaxed));
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

/// Has this thread take what its products keep for as long as it lives: on the CPU room as large as a core's second
/// cache. Else the first pass that is measured on the thread would be charged with it.
pub fn settle(device: &Device) {
    if crate::is_host(device) {
        let x = Tensor::<2>::ones([128, 128], &device.clone().inner());
        // Which operand goes through that room depends on how they lie.
        x.clone().transpose().matmul(x.clone().matmul(x.clone().transpose()));
    }
}

/// Forgets the peak of what this thread measures: it starts again from what is live now.
pub fn reset_peak() {
    account::restart(measured());
}

/// Measures a forward and backward pass: the most bytes in use beyond those in use before it and
/// beyond the parameters' gradients that it leaves.
///
/// Of the gradients it knows those of recomputed segments, each from when it is there: they grow
/// while the activations shrink. It measures the thread's [`Account`], or else the process: two at
/// once on the same one disturb each other.
#[derive(Debug)]
pub struct Beyond {
    before: usize,
}

impl Beyond {
    /// A pass begins.
    pub fn begin(device: &Device) -> Self {
        let before = Usage::of(device).map_or(0, |usage| usage.live);
        take_peak(device);
        measured().gradients.store(0, Relaxed);
        measured().most_beyond.store(0, Relaxed);
        measured().most.store(0, Relaxed);
        Self { before }
    }

    /// A recomputed segment has left gradients of so many bytes.
    pub(crate) fn left(gradients: usize, device: &Device) {
        let counters = measured();
        let before = counters.gradients.fetch_add(gradients, Relaxed);
        let peak = take_peak(device);
        counters.most.fetch_max(peak, Relaxed);
        counters.most_beyond.fetch_max(peak.saturating_sub(before), Relaxed);
    }

    /// The pass is over.
    pub fn end(self, device: &Device) -> Taken {
        Self::left(0, device);
        let beyond = |most: usize| most.saturating_sub(self.before);
        let counters = measured();
        Taken {
            activations: beyond(counters.most_beyond.load(Relaxed)),
            most: beyond(counters.most.load(Relaxed)),
        }
    }
}

/// The most bytes that a forward and backward pass had in use beyond those in use before it; 0 where
/// nothing counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Beyond the parameters' gradients of recomputed segments, too.
    pub activations: usize,
    /// All, whatever it is of.
    pub most: usize,
}

/// The peak since the last call, after which it starts again from what is live.
fn take_peak(device: &Device) -> usize {
    let counters = measured();
    match device.memory_pool_usage() {
        Some(_) => {
            Usage::of(device);
            let look = counters.look.swap(0, Relaxed);
            counters.earlier_look.fetch_max(look, Relaxed);
            look
        }
        None => {
            let peak = counters.peak.swap(counters.live(), Relaxed);
            counters.earlier_peak.fetch_max(peak, Relaxed);
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
