//! The segment around each block: what strategies decide about it, and how it is re-run.
//!
//! ```text
//! plan.rs       what is decided, asked at each segment
//! budget.rs     which segments to recompute so that the rest fits a number of bytes
//! replay.rs     a segment that keeps its inputs only, and is run again in the backward pass
//! units.rs      which parameters are handled block by block, and how
//! entered.rs    one pass through a model whose blocks' parameters come and go
//! unit.rs       one block of those, whose parameters come and whose gradients are taken
//! delivered.rs  a segment whose gradients are taken as soon as the backward pass leaves it
//! graft.rs      two operations that put a backward pass of ours into Burn's graph
//! bundle.rs     what goes into a segment and comes out of it
//! maps.rs       what is done to all tensors of those
//! verify.rs     whether a segment gave the same result twice
//! ```

mod budget;
mod bundle;
mod delivered;
mod entered;
mod graft;
mod maps;
mod plan;
mod replay;
mod unit;
mod units;
mod verify;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use bundle::{Bundle, TensorMap};
pub(crate) use delivered::delivered;
pub(crate) use entered::{Entered, Way};
pub(crate) use maps::Constant;
pub use plan::SegmentPlan;
pub(crate) use plan::{Met, Which};
pub(crate) use replay::recomputed;
pub(crate) use unit::Unit;
pub(crate) use units::Units;

/// What a panic elsewhere left behind is as good as ever: nothing here is changed in two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
