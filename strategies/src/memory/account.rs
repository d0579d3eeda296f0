//! Whose bytes they are: accounts that threads enter.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::Usage;

/// How many accounts there are, that of the process included: as many as a byte tells apart.
const ACCOUNTS: usize = 256;

/// What is counted of one account. Each has cache lines of its own, so that threads on several
/// accounts do not wait for one another.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Counters {
    live: AtomicUsize,
    /// The most live bytes since the last [`Beyond`](super::Beyond) was read.
    pub peak: AtomicUsize,
    /// The most before that, since the last [`reset_peak`](super::reset_peak).
    pub earlier_peak: AtomicUsize,
    /// The highest look at a device's pool since the last [`Beyond`](super::Beyond) was read.
    pub look: AtomicUsize,
    /// The highest look before that, since the last [`reset_peak`](super::reset_peak).
    pub earlier_look: AtomicUsize,
    /// Bytes of parameters' gradients that recomputed segments have left in this backward pass.
    pub gradients: AtomicUsize,
    /// The most bytes beyond those gradients, in the parts of the pass that are over.
    pub most_beyond: AtomicUsize,
    /// The most bytes in those parts, with the gradients.
    pub most: AtomicUsize,
}

impl Counters {
    const fn new() -> Self {
        Self {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            earlier_peak: AtomicUsize::new(0),
            look: AtomicUsize::new(0),
            earlier_look: AtomicUsize::new(0),
            gradients: AtomicUsize::new(0),
            most_beyond: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }

    pub fn are_of_process(&self) -> bool {
        std::ptr::eq(self, &PROCESS)
    }

    pub fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(live, Relaxed);
    }

    pub fn remove(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Relaxed);
    }

    pub fn live(&self) -> usize {
        self.live.load(Relaxed)
    }

    /// `None` where no allocator counts.
    pub fn usage(&self) -> Option<Usage> {
        let peak = self.peak.load(Relaxed).max(self.earlier_peak.load(Relaxed));
        (PROCESS.peak.load(Relaxed) > 0).then_some(Usage { live: self.live(), peak })
    }
}

/// The whole process: what is on any account, and on none.
pub(super) static PROCESS: Counters = Counters::new();

/// Of each further account, from number 1.
static OTHERS: [Counters; ACCOUNTS - 1] = [const { Counters::new() }; ACCOUNTS - 1];

/// Which of them are open.
static OPEN: Mutex<[bool; ACCOUNTS - 1]> = Mutex::new([false; ACCOUNTS - 1]);

thread_local! {
    // Neither lazy nor dropped: an allocator may read it at any time in a thread's life.
    static CURRENT: Cell<u8> = const { Cell::new(0) };
}

/// The account that the thread has entered: 0, the process, where none.
pub(super) fn current() -> u8 {
    CURRENT.try_with(Cell::get).unwrap_or(0)
}

/// The counters of an account.
pub(super) fn of(account: u8) -> &'static Counters {
    match account {
        0 => &PROCESS,
        other => &OTHERS[usize::from(other) - 1],
    }
}

/// A part of the process's memory that is counted by itself: what the threads that
/// [entered](Self::enter) it have allocated and nobody has freed.
///
/// A rank of a run that is a thread enters one, so that its memory is measured as if it were alone:
/// on that thread [`Usage`], [`Beyond`](super::Beyond), [`in_use`](super::in_use) and
/// [`reset_peak`](super::reset_peak) speak of the account, and on a thread that has entered none of
/// the whole process. It takes [`Counting`](super::Counting), and is of the host's memory only: a
/// device's pool counts for whoever uses the device.
///
/// # What is on it
///
/// A block stays on the account of the thread that allocated it, also where another resizes or frees
/// it. Burn's CPU backend allocates each result on the thread that asks for it, before it shares the
/// work among rayon's threads, and autodiff runs the backward pass on the thread that calls it: so
/// parameters, activations, gradients and moments are on the account. Not on it, but on the process
/// only, is what other threads allocate: the packed panels of matrix products and the tiles of
/// convolutions, which rayon's threads keep for themselves, and batches from the threads that prepare
/// them.
///
/// ```
/// use firebrick_strategies::memory::{Account, Counting, Usage};
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
/// // Freed on no account, and credited to the one that it is on.
/// drop(megabyte);
/// assert!(one.usage().unwrap().live < 1 << 20);
/// assert!(one.usage().unwrap().peak >= 1 << 20);
/// ```
#[derive(Debug)]
pub struct Account(u8);

impl Account {
    /// Opens an account. There are 255; where all are open, this is the process's.
    ///
    /// One that was closed is opened again with what is still allocated on it, which is nothing
    /// unless something has outlived its run; of several the one with the least is taken.
    #[allow(clippy::new_without_default)] // Opening one is an act, and takes one of a few.
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

    /// Whether it is that of the process, because all others were open.
    pub fn is_process(&self) -> bool {
        self.0 == 0
    }

    /// Puts what this thread allocates on this account, until the guard is dropped; then it is again
    /// on the one before.
    #[must_use = "the thread leaves the account when this is dropped"]
    pub fn enter(&self) -> Entered<'_> {
        let before = CURRENT.replace(self.0);
        Entered { before, on: PhantomData }
    }

    /// Bytes on this account. `None` where [`Counting`](super::Counting) is not installed.
    pub fn usage(&self) -> Option<Usage> {
        of(self.0).usage()
    }
}

/// Forgets the peak of an account: it starts again from what is live.
pub(super) fn restart(counters: &Counters) {
    counters.peak.store(counters.live(), Relaxed);
    for peak in [&counters.earlier_peak, &counters.look, &counters.earlier_look] {
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

/// A thread is on an account: see [`Account::enter`]. It belongs to its thread.
#[derive(Debug)]
pub struct Entered<'a> {
    before: u8,
    /// A raw pointer is of one thread, as what this has changed.
    on: PhantomData<(&'a Account, *const ())>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_distinct_and_used_again() {
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
