//! Tests of the bytes in use during training. The allocator counts all of a process, so these tests are their own
//! program and run one at a time.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod budget;
mod copies;
mod offloaded_params;
mod on_disk;
mod parts;
mod plan;
mod start;

use std::sync::{Mutex, MutexGuard, PoisonError};

use firebrick::memory::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A lock that each test holds while it runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
