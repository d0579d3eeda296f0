//! Layer norm and RMS norm over the last axis, with the sum before them, each in one pass over memory on the CPU.
//!
//! In a transformer, the input of a norm also goes around it: `x + f(norm(x))`. Burn adds the two gradients of `x` in
//! a pass of their own. [`norm_of_sum`] and [`norm_and_input`] return both tensors, and their gradient is one pass
//! that adds.
//!
//! ```text
//! ops.rs       the norms as operations of a backend, and the gradient, once for every backend
//! rows.rs      the kinds of norms, and their values and gradients with Burn's operations
//! branch.rs    gradients of an operation with two results
//! flex.rs      rows on all cores, each of which the compiler turns into vectors
//! cube.rs      rows on a device
//! cube_columns.rs the gradients of scale and bias on a device
//! ```
//!
//! # Memory
//!
//! The backward pass keeps the normalized tensor's input (the sum, if there is one), which the model usually holds
//! anyway, and 8 bytes for each row: its mean and the inverse of its deviation, in f32. RMS norm keeps 4 bytes.

mod branch;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod cube_columns;
mod flex;
mod ops;
mod rows;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use ops::Form;
pub use ops::NormOps;
pub use rows::{NormKind, NormRows};

/// Normalizes `x`, `[.., width]`, over its last axis, and returns the same shape and dtype.
///
/// `scale` and `bias` are `[width]`, each in f32 or in the dtype of `x`. In half precision, it computes in f32 and
/// rounds once.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{NormKind, norm};
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::from_data([[1.0, 3.0]], &device).require_grad();
/// let scale = Tensor::<1>::from_data([1.0, 2.0], &device);
/// let y = norm(x.clone(), scale, None, NormKind::Layer { epsilon: 0.0 });
/// assert_eq!(y.clone().into_data().iter::<f32>().collect::<Vec<_>>(), [-1.0, 2.0]);
/// assert!(x.grad(&y.backward()).is_some());
/// ```
///
/// # Panics
///
/// If `scale` or `bias` is not `[width]`, or `D` is 0.
pub fn norm<const D: usize>(
    x: Tensor<D>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
) -> Tensor<D> {
    run(x, None, scale, bias, kind).1
}

/// Normalizes `x` like [`norm`] and also returns `x` itself.
///
/// Use the returned tensor in place of `x`: the backward pass then adds the gradients of both results in one pass over
/// memory.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{NormKind, norm_and_input};
///
/// let x = Tensor::<2>::from_data([[1.0, 3.0]], &Device::flex());
/// let scale = Tensor::<1>::ones([2], &Device::flex());
/// let (x, normed) = norm_and_input(x, scale, None, NormKind::Layer { epsilon: 0.0 });
/// assert_eq!((x + normed.tanh()).dims(), [1, 2]);
/// ```
///
/// # Panics
///
/// Like [`norm`].
pub fn norm_and_input<const D: usize>(
    x: Tensor<D>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
) -> (Tensor<D>, Tensor<D>) {
    run(x, None, scale, bias, kind)
}

/// Returns `x + y` and its [`norm`], in one pass over memory.
///
/// `x` and `y` must have the same shape and dtype. In half precision, the sum is rounded before it is normalized.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{NormKind, norm_of_sum};
///
/// let device = Device::flex();
/// let (x, y) = (Tensor::<2>::from_data([[1.0, 3.0]], &device), Tensor::<2>::ones([1, 2], &device));
/// let scale = Tensor::<1>::ones([2], &device);
/// let (sum, normed) = norm_of_sum(x, y, scale, None, NormKind::Layer { epsilon: 0.0 });
/// assert_eq!(sum.into_data().iter::<f32>().collect::<Vec<_>>(), [2.0, 4.0]);
/// assert_eq!(normed.into_data().iter::<f32>().collect::<Vec<_>>(), [-1.0, 1.0]);
/// ```
///
/// # Panics
///
/// Like [`norm`], and if `x` and `y` differ in shape or dtype.
pub fn norm_of_sum<const D: usize>(
    x: Tensor<D>,
    y: Tensor<D>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
) -> (Tensor<D>, Tensor<D>) {
    assert_eq!((x.dims(), x.dtype()), (y.dims(), y.dtype()), "the terms of a sum have one shape and dtype");
    run(x, Some(y), scale, bias, kind)
}

fn run<const D: usize>(
    x: Tensor<D>,
    y: Option<Tensor<D>>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
) -> (Tensor<D>, Tensor<D>) {
    assert!(D > 0, "a norm is over the last axis, and a tensor of rank 0 has none");
    let width = [x.dims()[D - 1]];
    assert_eq!(scale.dims(), width, "the scale of a norm is as wide as the last axis");
    if let Some(bias) = &bias {
        assert_eq!(bias.dims(), width, "the bias of a norm is as wide as the last axis");
    }
    let form = Form { kind, sums: y.is_some(), biased: bias.is_some() };
    // Extensions take no optional tensors: `form` says which of these are read.
    let y = y.unwrap_or_else(|| x.clone()).into_dispatch();
    let bias = bias.unwrap_or_else(|| scale.clone()).into_dispatch();
    let (sum, normed) = <Dispatch as NormOps>::norm(x.into_dispatch(), y, scale.into_dispatch(), bias, form);
    (Tensor::from_dispatch(sum), Tensor::from_dispatch(normed))
}
