//! The segment around each block: what strategies decide about it, and how it is re-run.

mod budget;
mod bundle;
mod graft;
mod plan;
mod replay;

pub use bundle::{Bundle, TensorMap};
pub use plan::SegmentPlan;
pub(crate) use plan::{Met, Which};
pub(crate) use replay::recomputed;
