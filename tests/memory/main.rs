//! Bytes, as they are measured while training. The allocator counts all of a process, so this is a process of its own,
//! and its tests run one after the other.

#[path = "../support/mod.rs"]
mod support;

mod budget;
mod copies;
mod parts;
mod plan;
mod start;

use std::sync::{Mutex, MutexGuard, PoisonError};

use firebrick::memory::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by each test while it runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
