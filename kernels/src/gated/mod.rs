//! Gated activations: the feed-forward layers of Llama and T5 multiply the activation of one projection by another
//! (Shazeer, 2020, arXiv:2002.05202).
//!
//! On Flex, Burn computes SiLU as three passes and the product as a fourth, each on one core, and keeps a tensor of each
//! for the backward pass. Here the value is one pass on all cores, both gradients together are another, and only the
//! two projections are kept.
//!
//! On GPUs, the value is one kernel of ours, and so are both gradients together. With the feature `fusion`, Burn fuses them
//! from its operations, as for [`gelu`](crate::gelu()).
//!
//! ```text
//! ops.rs   values and gradients as operations of a backend
//! flex.rs  slices on all cores
//! cube.rs  kernels, where Burn does not fuse operations
//! ```

#[cfg(all(feature = "cube", not(feature = "fusion")))]
mod cube;
mod flex;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use ops::{Gate, GatedOps};

/// Multiplies the activation of `gate` by `up`, element by element. In half precision it computes in f32 and rounds
/// once. The backward pass keeps `gate` and `up`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Gate, gated};
///
/// let device = Device::flex();
/// let [gate, up] = [[0.0, 1.0], [5.0, 2.0]].map(|x| Tensor::<1>::from_data(x, &device));
/// let y: Vec<f32> = gated(gate, up, Gate::Silu).into_data().iter().collect();
/// assert!(y[0] == 0.0 && (y[1] - 1.462117).abs() < 1e-6);
/// ```
///
/// # Panics
///
/// If the shapes or the dtypes differ.
pub fn gated<const D: usize>(gate: Tensor<D>, up: Tensor<D>, form: Gate) -> Tensor<D> {
    assert_eq!(gate.dims(), up.dims(), "gated: the shapes of gate and up differ");
    assert_eq!(gate.dtype(), up.dtype(), "gated: the dtypes of gate and up differ");
    let [gate, up] = [gate, up].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as GatedOps>::gated_value(gate, up, form))
}
