//! Bytes in use: by the process or a rank's account on the CPU, in the device's pool elsewhere.

mod account;
mod allocations;
mod counting;
mod freed;
mod in_transit;
mod storages;

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use burn::tensor::Device;

pub(crate) use account::apart;
pub use account::{Account, AccountGuard, Inherited};
pub use allocations::Allocations;
pub(crate) use allocations::{is_recorded, repeated};
pub use counting::{Counting, has_failed};
pub use freed::keep_freed;
pub use in_transit::InTransit;
pub use storages::Storages;

use account::{Counters, PROCESS};
use allocations::{Kind, note};

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread measures a pass.
    static MEASURES: Cell<bool> = const { Cell::new(false) };
}

/// Returns how often this thread has asked the pool of a device for the bytes in use so far. Each time, the operations that
/// are queued on the host are handed to the device first.
pub fn looks() -> u64 {
    LOOKS.get()
}

/// Returns the counters of this thread: its account, or the process.
fn measured() -> &'static Counters {
    account::of(account::current())
}

/// Bytes in use, and their peak since the last [`reset_peak`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated now.
    pub live: usize,
    /// The highest value of `live`. A device's pool reports no peak: there it is the highest observed value.
    pub peak: usize,
}

impl Usage {
    /// Returns the process's heap, or that of this thread's [`Account`] if it has entered one. `None` unless
    /// [`Counting`] is installed.
    pub fn of_process() -> Option<Self> {
        measured().usage()
    }

    /// Returns the process's heap, including all accounts. `None` unless [`Counting`] is installed.
    pub fn of_all_accounts() -> Option<Self> {
        PROCESS.usage()
    }

    /// Returns the use of a device's pool, or that of [the process](Self::of_process) if the device has none. `None` if
    /// neither is counted.
    pub fn of(device: &Device) -> Option<Self> {
        match look(device) {
            Some(live) => {
                let looks = measured();
                let highest = looks.look.load(Relaxed).max(looks.earlier_look.load(Relaxed));
                Some(Self { live, peak: highest })
            }
            None => Self::of_process(),
        }
    }
}

/// Returns the bytes in use in a device's pool, if it has one, and observes them. The pool is asked through the queue of
/// operations, so a look holds the queue up.
fn look(device: &Device) -> Option<usize> {
    let pool = device.memory_pool_usage()?;
    LOOKS.set(LOOKS.get() + 1);
    let live = usize::try_from(pool.bytes_in_use).unwrap_or(usize::MAX);
    measured().look.fetch_max(live, Relaxed);
    Some(live)
}

/// Returns the bytes in use once a device has completed its work, which may allocate. `None` if nothing counts them.
pub fn in_use(device: &Device) -> Option<usize> {
    device.sync().ok()?;
    Usage::of(device).map(|usage| usage.live)
}

/// Returns the bytes of memory of the machine, if the system reports them.
pub fn of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Resets the peak of this thread's measurement to the live bytes.
pub fn reset_peak() {
    account::restart(measured());
}

/// Measures a forward and backward pass: the peak of the bytes in use, in addition to those before the pass and to the
/// parameters' gradients that it produces.
///
/// It knows the gradients of recomputed segments, from the time when each exists: they grow while the activations
/// shrink. On the CPU, it measures what its own thread allocates, whatever the other threads of the process do: on the
/// thread's [`Account`], or on one that is open for the pass. Two measurements on the same account at the same time
/// disturb each other. It counts the blocks that may hold a tensor's elements. The nodes of Burn's graph are not among them: of
/// several threads, the first to run a backward pass frees those that all have left. A device's pool is asked at its begin and
/// end, and when a segment was recomputed.
#[derive(Debug)]
pub struct Beyond {
    before: usize,
    /// The account of the pass, if the thread was on none. The guard is dropped first.
    own: Option<(AccountGuard<'static>, Account)>,
    is_of_pool: bool,
}

impl Beyond {
    /// Starts the measurement of a pass.
    pub fn begin(device: &Device) -> Self {
        let in_pool = look(device);
        let is_on_process = measured().are_of_process() && in_pool.is_none();
        MEASURES.set(true);
        let own = is_on_process.then(Account::new).map(|account| (account.entered(), account));
        let before = in_pool.unwrap_or_else(|| measured().tensors());
        taken_peak(in_pool);
        measured().gradients.store(0, Relaxed);
        measured().most_beyond.store(0, Relaxed);
        measured().most.store(0, Relaxed);
        measured().come.store(0, Relaxed);
        note(measured(), Kind::Begin, 0);
        Self { before, own, is_of_pool: in_pool.is_some() }
    }

    /// Returns the bytes in use before the pass.
    pub fn before(&self) -> usize {
        self.before
    }

    /// Observes the bytes in use in a device's pool, if this thread measures a pass.
    pub fn observe(device: &Device) {
        if MEASURES.get() {
            look(device);
        }
    }

    /// Records the bytes of the gradients that a recomputed segment has produced, if this thread measures a pass.
    pub fn left(gradients: usize, device: &Device) {
        if !MEASURES.get() {
            return;
        }
        let counters = measured();
        let before = counters.gradients.fetch_add(gradients, Relaxed);
        let peak = taken_peak(look(device));
        counters.most.fetch_max(peak, Relaxed);
        counters.most_beyond.fetch_max(peak.saturating_sub(before), Relaxed);
        note(counters, Kind::Left, gradients);
    }

    /// Records that so many bytes of gradients are there, all that were left so far among them: those of several passes that are
    /// measured together have been summed.
    pub fn holding(gradients: usize, device: &Device) {
        if MEASURES.get() {
            Self::left(gradients.wrapping_sub(measured().gradients.load(Relaxed)), device);
        }
    }

    /// Runs what brings parameters that outlive the pass. If this thread measures a pass in the host's memory, they count as
    /// there before it. A device's pool is not asked: let its parameters come before the pass.
    pub fn without<T>(bring: impl FnOnce() -> T) -> T {
        if !MEASURES.get() {
            return bring();
        }
        let before = measured().tensors();
        let brought = bring();
        let bytes = measured().tensors().wrapping_sub(before);
        measured().come.fetch_add(bytes, Relaxed);
        note(measured(), Kind::Come, bytes);
        brought
    }

    /// Returns the bytes in use before the pass, with those that have come during it.
    fn with_come(&self) -> usize {
        let come = if self.is_of_pool { 0 } else { measured().come.load(Relaxed) };
        self.before.wrapping_add(come)
    }

    /// Ends the measurement.
    pub fn end(self, device: &Device) -> PassPeak {
        Self::left(0, device);
        MEASURES.set(false);
        let before = self.with_come();
        let beyond = |most: usize| most.saturating_sub(before);
        let counters = measured();
        let taken = PassPeak {
            activations: beyond(counters.most_beyond.load(Relaxed)),
            most: beyond(counters.most.load(Relaxed)),
        };
        drop(self.own);
        taken
    }
}

/// The peak of the bytes in use in a forward and backward pass, in addition to those before it; 0 if nothing counts
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassPeak {
    /// Without the parameters' gradients of recomputed segments.
    pub activations: usize,
    /// With everything.
    pub most: usize,
}

/// Returns the peak since the last call, and resets it to the live bytes. A device's pool has been looked at before.
fn taken_peak(in_pool: Option<usize>) -> usize {
    let counters = measured();
    match in_pool {
        Some(_) => {
            let look = counters.look.swap(0, Relaxed);
            counters.earlier_look.fetch_max(look, Relaxed);
            look
        }
        None => counters.tensor_peak.swap(counters.tensors(), Relaxed),
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
            // No allocator counts in this test program, so the CPU's use is unknown.
            assert_eq!((Usage::of(&device), Usage::of_process()), (None, None));
            return;
        }
        // Much more than other tests use at the same time.
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
