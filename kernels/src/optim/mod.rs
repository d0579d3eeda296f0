//! Updates of a parameter in one pass over memory.
//!
//! Burn writes an update as tensor operations, each of which reads and writes the whole parameter; AdamW has about
//! fifteen. [`step`] reads parameter, gradient and moments once and writes them once, in place, on all cores and in
//! vectors, so memory bandwidth is the limit. An optimizer states the arithmetic of one element as a [`Rule`], and
//! computes the update by Burn's operations where [`step`] returns its input.
//!
//! On Flex and on GPUs, the pass computes in f32, whatever the parameter's dtype; gradients may be f32, bf16 or f16, and
//! moments have the parameter's dtype.
//!
//! # Together
//!
//! A model has hundreds of parameters, most of them small, and a kernel for each would cost a GPU more to launch than to
//! run. The updates of a [`Together`] are launched in groups: up to 32 parameters in one kernel, and on CUDA devices some
//! hundred.
//!
//! # In place
//!
//! An update may write into a tensor only if nothing else holds its memory. Otherwise it copies the tensor first, and
//! [`copies`] counts it.
//!
//! ```text
//! rule.rs         the update of one element, and what it applies to
//! equations.rs    the updates of AdamW, Adagrad, SGD and Lion
//! together.rs     the updates of a model, launched together
//! fused.rs        one update of tensors on Flex
//! cube/           updates on GPUs, many in one kernel
//! slices.rs       tensors as slices, in place or copied
//! kernel.rs       the pass over the slices, on all cores and in vectors
//! floats.rs       blocks of f32 from slices in any precision, and back
//! prefetch.rs     prefetching for the update
//! identity.rs     what tells a tensor from all others
//! replicas.rs     half-precision copies of parameters, which updates write and casts take
//! blocks.rs       the pass over blocks of 8-bit moments
//! dynamic_map.rs  the 256 values of 8-bit numbers, and rounding to them
//! ```

mod blocks;
#[cfg(feature = "cube")]
mod cube;
mod dynamic_map;
pub mod equations;
mod floats;
mod fused;
mod identity;
mod kernel;
mod prefetch;
mod replicas;
mod rule;
mod slices;
mod together;

use burn::tensor::Tensor;

pub use blocks::{BLOCK, Rows, blocks};
pub use dynamic_map::dynamic_map;
pub use replicas::{Replicas, take, taken};
pub use rule::{Parts, Real, Rule, Update};
pub use together::Together;

/// Computes one update in one pass, at once: returns the new parameter and moments, in the parameter's dtype.
///
/// # Errors
///
/// The inputs, if the pass does not support them: it updates f32, bf16 and f16 on Flex and GPUs, outside autodiff, unless
/// updates are [off](crate::off).
#[allow(clippy::result_large_err)] // The error is the input, which the caller takes apart at once.
pub fn step<const D: usize, const N: usize, const C: usize, R: Rule<N, C>>(
    rule: &R,
    parts: Parts<D, N>,
) -> Result<(Tensor<D>, [Tensor<D>; N]), Parts<D, N>> {
    let mut together = Together::new();
    let updated = together.step(rule, parts);
    together.launch();
    updated
}

/// Returns the number of parameters and moments that updates on this thread have copied so far, because something
/// else held their memory or they were not contiguous. On a GPU it counts those that its queue has reached.
pub fn copies() -> u64 {
    slices::copies()
}
