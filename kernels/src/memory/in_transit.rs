//! Buffers that have left the account of their thread.

use std::alloc::Layout;
use std::cell::Cell;
use std::ops::Deref;

use super::account::{Counters, current, may_be_tensor, of};

thread_local! {
    /// The block that this thread frees next and that has left its account.
    static HAS_LEFT: Cell<Option<(u8, Layout)>> = const { Cell::new(None) };
}

/// A buffer that counts for the process alone from now on, as a message to other ranks does: they read it at their own pace, so
/// that the bytes that its sender has in use would depend on theirs.
///
/// ```
/// use firebrick_kernels::memory::{Account, Counting, InTransit};
///
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting;
///
/// let account = Account::new();
/// let message = {
///     let _on_it = account.enter();
///     let message = vec![1u8; 1 << 20];
///     InTransit::new(message, 1)
/// };
/// assert!(account.usage().unwrap().live < 1 << 20);
/// drop(message);
/// ```
#[derive(Debug)]
pub struct InTransit<T: Deref<Target = [u8]>> {
    /// `None` only while it is dropped.
    buffer: Option<T>,
    /// The account that it has left, and its block. `None` if the thread was on none.
    has_left: Option<(u8, Layout)>,
}

impl<T: Deref<Target = [u8]>> InTransit<T> {
    /// Takes a buffer that fills its block of the heap, of this alignment, off the account of this thread.
    pub fn new(buffer: T, align: usize) -> Self {
        let account = current();
        let has_left = Layout::from_size_align(buffer.len(), align).ok().filter(|_| account != 0);
        let has_left = has_left.map(|layout| (account, layout));
        if let Some((account, layout)) = has_left {
            of(account).leave(layout);
        }
        Self { buffer: Some(buffer), has_left }
    }
}

impl<T: Deref<Target = [u8]>> AsRef<[u8]> for InTransit<T> {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl<T: Deref<Target = [u8]>> Drop for InTransit<T> {
    fn drop(&mut self) {
        let around = HAS_LEFT.replace(self.has_left);
        drop(self.buffer.take());
        // The block was on another account, which its bytes have left only now.
        if let Some((account, layout)) = HAS_LEFT.replace(around) {
            of(account).add(layout.size(), may_be_tensor(layout));
        }
    }
}

/// Returns whether a block of this account that this thread frees has left it before.
pub(super) fn has_left(counters: &Counters, layout: Layout) -> bool {
    let has = |(account, of_block)| of_block == layout && std::ptr::eq(of(account), counters);
    let found = HAS_LEFT.try_with(Cell::get).ok().flatten().is_some_and(has);
    if found {
        HAS_LEFT.set(None);
    }
    found
}
