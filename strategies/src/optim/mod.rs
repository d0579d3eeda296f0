//! Optimizers that update a parameter in one pass over memory on the CPU.
//!
//! Burn writes an update as tensor operations, each of which goes over the whole parameter: AdamW's
//! are some fifteen. Here an update reads parameter, gradient and moments once and writes them once,
//! in place, on all cores and in vectors: it takes the time that the memory takes.
//!
//! They are [Burn's optimizers](burn::optim::Optimizer): they go into a
//! [`ModuleOptimizer`](burn::optim::ModuleOptimizer), alone or in groups, and their records are those of
//! Burn's optimizers of the same names, in both directions. On Flex the pass computes in f32, whatever
//! the parameter is stored in; gradients may be in f32, bf16 or f16, and moments are in the parameter's
//! dtype. On other backends, and in other dtypes, Burn's own operations do the update.
//!
//! [`Adafactor`] and [`Lamb`] need more than one pass, since an update depends on the whole parameter: they are tensor
//! operations, on every backend. [`AdamW8bit`] is a pass over the host's memory, over moments of one byte each.
//!
//! # In place
//!
//! An update may write into a tensor only where nothing else holds its memory; where something does,
//! it is copied first, and [`copies`] counts it. Training as usual copies nothing: what needs care is a
//! clone of the model that lives through an update.
//!
//! ```text
//! groups.rs    parameters with their own learning rate and weight decay
//! layer_decay.rs  rates that fall from the head to the embeddings
//! scaled.rs    an optimizer at a multiple of the learning rate
//! adamw.rs     AdamW
//! adafactor.rs  Adafactor
//! lamb.rs      LAMB
//! adamw_8bit.rs   AdamW whose moments are 8-bit numbers
//! dynamic_map.rs  the values of these numbers, and which is the nearest
//! blocks.rs    the pass over blocks of them
//! lion.rs      Lion
//! sgd.rs       Sgd
//! replicas.rs  half-precision copies of parameters, written in the same pass and lent to casts
//! rule.rs      what an optimizer does to one element
//! fused.rs     tensors as slices, in place or copied
//! kernel.rs    the pass over the slices, on all cores and in vectors
//! floats.rs    blocks of f32 from slices in any precision, and back
//! prefetch.rs  asking memory for what an update reads soon
//! ```

mod adafactor;
mod adamw;
mod adamw_8bit;
mod blocks;
mod dynamic_map;
#[cfg(feature = "flex")]
mod floats;
#[cfg(feature = "flex")]
mod fused;
mod groups;
#[cfg(feature = "flex")]
mod kernel;
mod lamb;
mod layer_decay;
mod lion;
#[cfg(feature = "flex")]
mod prefetch;
mod replicas;
mod rule;
mod scaled;
mod sgd;
#[cfg(test)]
mod tests;

pub use adafactor::{Adafactor, AdafactorState};
pub use adamw::AdamW;
pub use adamw_8bit::{AdamW8bit, AdamW8bitState};
pub use dynamic_map::dynamic_map;
pub use groups::{Alike, Group, Groups, GroupsError};
pub use lamb::{Lamb, LambState};
pub use lion::Lion;
pub(crate) use replicas::take;
pub use replicas::{Replicas, replicas, taken};
pub use scaled::Scaled;
pub use sgd::{Sgd, SgdState};

/// How many parameters and moments the updates on this thread have copied so far, since something
/// else held their memory or they did not lie in it in order.
pub fn copies() -> u64 {
    fused::copies()
}

/// Without Flex there is no single pass.
#[cfg(not(feature = "flex"))]
mod fused {
    use burn::tensor::Tensor;

    use super::rule::{Parts, Rule};

    pub fn copies() -> u64 {
        0
    }

    #[allow(clippy::result_large_err)] // It is what was given, and is taken apart at once.
    pub fn step<const D: usize, const N: usize, R: Rule<N>>(
        _rule: &R,
        parts: Parts<D, N>,
    ) -> Result<(Tensor<D>, [Tensor<D>; N]), Parts<D, N>> {
        Err(parts)
    }

    pub fn address<const D: usize>(_tensor: &Tensor<D>) -> Option<usize> {
        None
    }
}
