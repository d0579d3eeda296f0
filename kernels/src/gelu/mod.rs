//! The Gaussian error linear unit, with its own gradient on every device, vectorized on the CPU.
//!
//! On GPUs, Burn 0.22.1 uses the gradient of the approximation for the exact form, and composes the approximation of
//! operations that each keep a tensor for the backward pass. On the CPU both run element by element on one core. Here
//! the gradient matches the function, only the input is kept, and Flex computes on all cores in vectors.
//!
//! The function is a pass behind the product that it activates, not that product's epilogue, because its arithmetic takes
//! the time: on two cores of an EPYC of the first generation, 2048 x 1024 elements in f32 take 2.2 ms. They take 2.0 ms if
//! they are read from the first cache, where an epilogue would find them, and the product takes 15 ms. The lines
//! `epilogue` of `cargo bench -p firebrick-kernels --bench elements` compare the two.
//!
//! On GPUs, the value and the gradient are a kernel of ours each, which moves 16 bytes at a time. With the feature `fusion`
//! they are made of element-wise operations, which Burn fuses into one kernel each, together with the bias before them.
//!
//! ```text
//! ops.rs      values and slopes as operations of a backend
//! flex.rs     slices on all cores
//! cube.rs     kernels, where Burn does not fuse operations
//! vectors.rs  erf, exp and tanh without branches, which the compiler turns into vectors
//! ```

#[cfg(all(feature = "cube", not(feature = "fusion")))]
pub(crate) mod cube;
mod flex;
mod ops;
#[cfg(test)]
mod tests;
pub(crate) mod vectors;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use ops::{Gelu, GeluOps};
pub(crate) use vectors::exp;

/// Computes x · Φ(x) of each element, where Φ is the distribution function of the normal distribution (Hendrycks &
/// Gimpel, 2016, arXiv:1606.08415), or its approximation. In half precision it computes in f32 and rounds once.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Gelu, gelu};
///
/// let x = Tensor::<1>::from_data([0.0, 1.0], &Device::flex().autodiff()).require_grad();
/// let y = gelu(x.clone(), Gelu::Exact);
/// let values: Vec<f32> = y.clone().into_data().iter().collect();
/// assert!(values[0] == 0.0 && (values[1] - 0.841345).abs() < 1e-6);
/// let slopes: Vec<f32> = x.grad(&y.sum().backward()).unwrap().into_data().iter().collect();
/// assert!((slopes[0] - 0.5).abs() < 1e-6 && (slopes[1] - 1.083315).abs() < 1e-6);
/// ```
pub fn gelu<const D: usize>(x: Tensor<D>, form: Gelu) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as GeluOps>::gelu_value(x.into_dispatch(), form))
}
