//! The segment around each block: what strategies decide about it, and its recomputation.
//!
//! ```text
//! plan.rs       the decisions of strategies, read at each segment
//! budget.rs     chooses the segments to recompute, so that the others fit a number of bytes
//! chosen.rs     a segment that the plan recomputes, between its two runs and the plan
//! replay.rs     a segment that keeps only its inputs and runs again in the backward pass
//! units.rs      the parameters that are handled block by block, and how
//! root.rs       the parameters outside blocks, gathered once for all passes of an optimizer step
//! entered.rs    one pass through a model whose block parameters are provided segment by segment
//! put_away.rs   takes the parameters that are stored elsewhere out of the model
//! fetching.rs   parameters of a block on their way from the host or a disk, while the blocks before compute
//! offloaded.rs  parameters that wait outside memory
//! unit.rs       one block with provided parameters and delivered gradients
//! deliveries.rs the gradients that segments have delivered, and the sums that are on their way
//! delivered.rs  a segment whose gradients are taken as soon as the backward pass leaves it
//! summed.rs     sums the gradients of parameters that each rank has whole, where ranks divide positions
//! graft.rs      two operations that put our own backward pass into Burn's graph
//! bundle.rs     the inputs and outputs of a segment
//! run.rs        Pass::segment: runs a block as a segment; where its parameters come from
//! constant.rs   tensors from outside autodiff as constants of a pass
//! timed.rs      the backward pass of a block, for the timeline
//! maps.rs       maps over all tensors of a segment
//! verify.rs     checks that a segment gives the same result twice
//! ```

mod budget;
mod bundle;
mod chosen;
mod constant;
mod delivered;
mod deliveries;
mod entered;
mod fetching;
mod graft;
mod maps;
mod offloaded;
mod plan;
mod put_away;
mod replay;
mod root;
mod run;
mod summed;
mod timed;
mod unit;
mod units;
mod verify;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use bundle::{Bundle, TensorMap};
pub use deliveries::SUMS_IN_FLIGHT;
pub(crate) use entered::EnteredModel;
pub(super) use graft::{graft, join, node_of};
pub use offloaded::{OffloadedParam, OffloadedParams, OffloadedRead};
pub use plan::{SegmentPlan, Which};
pub(crate) use root::Root;
pub use units::Units;

/// Ignores poisoning: every change under these locks is a single step, so the data stays valid after a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
