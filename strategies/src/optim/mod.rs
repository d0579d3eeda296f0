//! Optimizers that update a parameter in one pass over memory on the CPU.
//!
//! Burn writes an update as tensor operations, each of which reads and writes the whole parameter; AdamW has about
//! fifteen. Here an update reads parameter, gradient and moments once and writes them once, in place, on all cores and
//! in vectors, so memory bandwidth is the limit.
//!
//! They implement [Burn's optimizer trait](burn::optim::Optimizer) and work in a
//! [`ModuleOptimizer`](burn::optim::ModuleOptimizer), alone or in groups. They read and write the records of Burn's
//! optimizers of the same names. On Flex, the pass computes in f32, whatever the parameter's dtype; gradients may be
//! f32, bf16 or f16, and moments have the parameter's dtype. On other backends and in other dtypes, Burn's own
//! operations compute the update.
//!
//! [`Adafactor`] and [`Lamb`] need more than one pass, since an update depends on the whole parameter: they use tensor
//! operations on every backend. [`AdamW8bit`] makes one pass over host memory, with moments of one byte each.
//!
//! # In place
//!
//! An update may write into a tensor only if nothing else holds its memory. Otherwise it copies the tensor first, and
//! [`copies`] counts it. Ordinary training copies nothing; avoid a clone of the model that outlives an update.
//!
//! ```text
//! groups.rs       parameters with their own learning rate and weight decay
//! layer_decay.rs  learning rates that decrease from the head to the embeddings
//! scaled.rs       an optimizer at a multiple of the learning rate
//! adamw.rs        AdamW
//! adafactor.rs    Adafactor
//! lamb.rs         LAMB
//! adamw_8bit.rs   AdamW with 8-bit moments
//! dynamic_map.rs  the 256 values of 8-bit numbers, and rounding to them
//! blocks.rs       the pass over blocks of 8-bit moments
//! lion.rs         Lion
//! sgd.rs          Sgd
//! replicas.rs     half-precision copies of parameters, written in the same pass and lent to casts
//! rule.rs         the update of one element
//! fused.rs        tensors as slices, in place or copied
//! kernel.rs       the pass over the slices, on all cores and in vectors
//! floats.rs       blocks of f32 from slices in any precision, and back
//! prefetch.rs     prefetching for the update
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

/// Returns the number of parameters and moments that updates on this thread have copied so far, because something
/// else held their memory or they were not contiguous.
pub fn copies() -> u64 {
    fused::copies()
}

/// A stub: without Flex there is no single-pass update.
#[cfg(not(feature = "flex"))]
mod fused {
    use burn::tensor::Tensor;

    use super::rule::{Parts, Rule};

    pub fn copies() -> u64 {
        0
    }

    #[allow(clippy::result_large_err)] // The error is the input, which the caller takes apart at once.
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
