//! The segment around each block: what strategies decide about it, and how it is re-run.
//!
//! ```text
//! plan.rs     what is decided, asked at each segment
//! budget.rs   which segments to recompute so that the rest fits a number of bytes
//! replay.rs   a segment that keeps its inputs only, and is run again in the backward pass
//! graft.rs    two operations that put a backward pass of ours into Burn's graph
//! bundle.rs   what goes into a segment and comes out of it
//! maps.rs     what is done to all tensors of those
//! verify.rs   whether a segment gave the same result twice
//! ```

mod budget;
mod bundle;
mod graft;
mod maps;
mod plan;
mod replay;
mod verify;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use bundle::{Bundle, TensorMap};
pub use plan::SegmentPlan;
pub(crate) use plan::{Met, Which};
pub(crate) use replay::recomputed;

/// What a panic elsewhere left behind is as good as ever: nothing here is changed in two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
