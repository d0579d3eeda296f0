//! Strategies that change how a step is executed: its memory, its speed, and where it runs. The result stays the same.
//!
//! ```text
//! accumulate.rs    Accumulate: sums the micro-batches of an optimizer step
//! amp/             Amp: half-precision replica and activations over an f32 master, and the loss scale
//! zero/            Zero: data-parallel training with sharded state
//! offload/         Offload: keeps the master and the moments, optionally the replica too, in host memory or on a disk
//! recompute.rs     Recompute: drops a block's activations and computes them again
//! mesh.rs          Mesh: divides the ranks into axes, of which one shares the tokens of each sample
//! keep_padding.rs  KeepPadding: computes padding, for comparison
//! ```

mod accumulate;
mod amp;
mod keep_padding;
mod mesh;
mod offload;
mod recompute;
mod zero;

pub use accumulate::{Accumulate, AccumulateIn};
pub use amp::{Amp, Keep, LossScale};
pub use keep_padding::KeepPadding;
pub use mesh::Mesh;
pub use offload::Offload;
pub use recompute::Recompute;
pub use zero::Zero;
