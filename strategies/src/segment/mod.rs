//! The segment around each block: what strategies decide about it, and how it is re-run.

mod budget;
mod bundle;
mod graft;
mod plan;
mod replay;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use bundle::{Bundle, TensorMap};
pub use plan::SegmentPlan;
pub(crate) use plan::{Met, Which};
pub(crate) use replay::recomputed;

/// What a panic elsewhere left behind is as good as ever: nothing here is changed in two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
