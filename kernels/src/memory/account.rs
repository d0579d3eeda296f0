//! Memory accounts, which threads enter to measure their own allocations.

use std::alloc::Layout;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::Usage;

/// The number of accounts, including that of the process: as many as a byte can distinguish.
const ACCOUNTS: usize = 256;

/// The counters of one account. Each has its own cache lines, so threads on different accounts do not contend.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Counters {
    live: AtomicUsize,
    /// The most live bytes since the last [`reset_peak`](super::reset_peak).
    pub peak: AtomicUsize,
    /// Live bytes of the blocks that may hold a tensor's elements.
    tensors: AtomicUsize,
    /// The most of those since the last read of [`Beyond`](super::Beyond).
    pub tensor_peak: AtomicUsize,
    /// The highest observed use of a device's pool since the last read of [`Beyond`](super::Beyond).
    pub look: AtomicUsize,
    /// The highest observed use before that, since the last [`reset_peak`](super::reset_peak).
    pub earlier_look: AtomicUsize,
    /// Bytes of parameters' gradients that recomputed segments have left in this backward pass.
    pub gradients: AtomicUsize,
    /// The most bytes in addition to those gradients, in the completed parts of the pass.
    pub most_beyond: AtomicUsize,
    /// The most bytes in those parts, with the gradients.
    pub most: AtomicUsize,
    /// Bytes of parameters that came in this pass and outlive it, less what was freed for them: modulo 2^64.
    pub come: AtomicUsize,
}

impl Counters {
    const fn new() -> Self {
        Self {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            tensors: AtomicUsize::new(0),
            tensor_peak: AtomicUsize::new(0),
            look: AtomicUsize::new(0),
            earlier_look: AtomicUsize::new(0),
            gradients: AtomicUsize::new(0),
            come: AtomicUsize::new(0),
            most_beyond: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }

    pub fn are_of_process(&self) -> bool {
        std::ptr::eq(self, &PROCESS)
    }

    pub fn add(&self, bytes: usize, may_be_tensor: bool) {
        let add = |live: &AtomicUsize, peak: &AtomicUsize| {
            let live = live.fetch_add(bytes, Relaxed).wrapping_add(bytes);
            peak.fetch_max(in_use(live), Relaxed);
        };
        add(&self.live, &self.peak);
        if may_be_tensor {
            add(&self.tensors, &self.tensor_peak);
        }
    }

    pub fn remove(&self, bytes: usize, may_be_tensor: bool) {
        self.live.fetch_sub(bytes, Relaxed);
        if may_be_tensor {
            self.tensors.fetch_sub(bytes, Relaxed);
        }
    }

    pub fn live(&self) -> usize {
        in_use(self.live.load(Relaxed))
    }

    /// Returns the live bytes of the blocks that may hold a tensor's elements.
    pub fn tensors(&self) -> usize {
        in_use(self.tensors.load(Relaxed))
    }

    /// Returns `None` if no counting allocator is installed.
    pub fn usage(&self) -> Option<Usage> {
        let peak = self.peak.load(Relaxed);
        (PROCESS.peak.load(Relaxed) > 0).then_some(Usage { live: self.live(), peak })
    }
}

/// Returns live bytes modulo 2^64, which are negative while a block of another account is [in transit](super::InTransit).
fn in_use(live: usize) -> usize {
    live.cast_signed().max(0).cast_unsigned()
}

/// Whether a block may hold the elements of a float tensor. What maps and lists allocate is aligned for pointers, and differs
/// from one pass to the next.
pub(super) fn may_be_tensor(layout: Layout) -> bool {
    layout.align() <= align_of::<f32>()
}

/// The whole process: allocations on any account, and on none.
pub(super) static PROCESS: Counters = Counters::new();

/// The counters of the other accounts, from number 1.
static OTHERS: [Counters; ACCOUNTS - 1] = [const { Counters::new() }; ACCOUNTS - 1];

/// Whether each of the other accounts is open.
static OPEN: Mutex<[bool; ACCOUNTS - 1]> = Mutex::new([false; ACCOUNTS - 1]);

thread_local! {
    // Neither lazy nor dropped: an allocator may read it at any time during a thread's life.
    static CURRENT: Cell<u8> = const { Cell::new(0) };
}

/// Returns the account that the thread has entered, or 0, the process.
pub(super) fn current() -> u8 {
    CURRENT.try_with(Cell::get).unwrap_or(0)
}

/// Returns the counters of an account.
pub(super) fn of(account: u8) -> &'static Counters {
    match account {
        0 => &PROCESS,
        other => &OTHERS[usize::from(other) - 1],
    }
}

/// A separately counted part of the process's memory: the live allocations of the threads that [entered](Self::enter)
/// it.
///
/// A rank that runs as a thread enters an account, so that its memory is measured as if it ran alone. On that thread,
/// [`Usage`], [`Beyond`](super::Beyond), [`in_use`](super::in_use) and [`reset_peak`](super::reset_peak) refer to the
/// account; on a thread without an account, they refer to the whole process. Accounts need
/// [`Counting`](super::Counting), and cover host memory only: a device's pool counts for all users of the device.
///
/// # What an account includes
///
/// A block stays on the account of the thread that allocated it, even if another thread resizes or frees it. Burn's CPU
/// backend allocates each result on the calling thread, before it distributes the work among rayon's threads, and
/// autodiff runs the backward pass on the calling thread. An account therefore includes parameters, activations,
/// gradients and moments. The packed panels of this crate's matrix products, and the allocations of other threads, are
/// only counted for the process: panels and the tiles of convolutions, which rayon's threads keep, and batches from the
/// threads that prepare them. What a rank sends to others counts for the process [from then on](super::InTransit).
///
/// ```
/// use firebrick_kernels::memory::{Account, Counting, Usage};
///
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting;
///
/// let (one, other) = (Account::new(), Account::new());
/// let megabyte = {
///     let _on_it = one.enter();
///     let megabyte = vec![1u8; 1 << 20];
///     assert_eq!(Usage::of_process(), one.usage());
///     megabyte
/// };
/// assert!(one.usage().unwrap().live >= 1 << 20);
/// assert_eq!(other.usage().unwrap().live, 0);
///
/// // Freed without an account; the bytes are still credited to the account of the block.
/// drop(megabyte);
/// assert!(one.usage().unwrap().live < 1 << 20);
/// assert!(one.usage().unwrap().peak >= 1 << 20);
/// ```
#[derive(Debug)]
pub struct Account(u8);

impl Account {
    /// Opens an account. There are 255; if all are open, this returns the account of the process.
    ///
    /// A closed account may still have live allocations, if something has outlived its run. `new` reopens the closed
    /// account with the least.
    #[allow(clippy::new_without_default)] // `new` takes one of a few accounts.
    pub fn new() -> Self {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = (1..=u8::MAX).filter(|account| !open[usize::from(*account) - 1]);
        let Some(account) = closed.min_by_key(|account| of(*account).live()) else {
            return Self(0);
        };
        open[usize::from(account) - 1] = true;
        restart(of(account));
        Self(account)
    }

    /// Returns whether this is the account of the process, because all others were open.
    pub fn is_process(&self) -> bool {
        self.0 == 0
    }

    /// Puts the allocations of this thread on this account until you drop the guard; then the thread returns to its
    /// previous account.
    #[must_use = "the thread leaves the account when this is dropped"]
    pub fn enter(&self) -> AccountGuard<'_> {
        self.entered()
    }

    /// Like [`enter`](Self::enter), for a guard that is stored with its account.
    pub(super) fn entered(&self) -> AccountGuard<'static> {
        AccountGuard { before: CURRENT.replace(self.0), on: PhantomData }
    }

    /// Returns the bytes on this account, or `None` if [`Counting`](super::Counting) is not installed.
    pub fn usage(&self) -> Option<Usage> {
        of(self.0).usage()
    }
}

/// The account of a thread, for others that work for it.
///
/// ```
/// use firebrick_kernels::memory::{Account, Inherited};
///
/// let account = Account::new();
/// let _on_it = account.enter();
/// let inherited = Inherited::of_this_thread();
/// std::thread::spawn(move || {
///     let _on_it = inherited.enter();
///     // What this thread allocates is on the account too.
/// });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inherited(u8);

impl Inherited {
    /// Returns the account that this thread has entered, or the process.
    pub fn of_this_thread() -> Self {
        Self(current())
    }

    /// Puts the allocations of this thread on the account until you drop the guard.
    #[must_use = "the thread leaves the account when this is dropped"]
    pub fn enter(self) -> AccountGuard<'static> {
        AccountGuard { before: CURRENT.replace(self.0), on: PhantomData }
    }
}

/// Puts the allocations of this thread on the process alone until the guard is dropped: for buffers that outlive the
/// work for which the thread is on its account.
pub(crate) fn apart() -> AccountGuard<'static> {
    AccountGuard { before: CURRENT.replace(0), on: PhantomData }
}

/// Resets the peak of an account to the live bytes.
pub(super) fn restart(counters: &Counters) {
    counters.peak.store(counters.live(), Relaxed);
    for peak in [&counters.look, &counters.earlier_look] {
        peak.store(0, Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if !self.is_process() {
            OPEN.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(self.0) - 1] = false;
        }
    }
}

/// A guard while a thread is on an account: see [`Account::enter`]. It cannot leave its thread.
#[derive(Debug)]
pub struct AccountGuard<'a> {
    before: u8,
    /// A raw pointer makes the guard `!Send`: it changes the state of its own thread.
    on: PhantomData<(&'a Account, *const ())>,
}

impl Drop for AccountGuard<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_distinct_and_reused() {
        let open: Vec<Account> = (0..ACCOUNTS - 1).map(|_| Account::new()).collect();
        let mut numbers: Vec<u8> = open.iter().map(|account| account.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ACCOUNTS - 1);
        assert!(!numbers.contains(&0));
        assert!(Account::new().is_process(), "there are no more");
        drop(open);
        assert!(!Account::new().is_process());
    }

    #[test]
    fn a_thread_returns_to_the_account_before() {
        let (one, other) = (Account(1), Account(2));
        let on_one = one.enter();
        {
            let _on_other = other.enter();
            assert_eq!(current(), 2);
            assert_eq!(std::thread::spawn(current).join().unwrap(), 0);
        }
        assert_eq!(current(), 1);
        drop(on_one);
        assert_eq!(current(), 0);
        std::mem::forget([one, other]); // They were never opened.
    }
}
