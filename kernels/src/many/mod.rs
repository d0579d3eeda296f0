//! Passes over the tensors of a whole model, many tensors in one kernel.
//!
//! A model has hundreds of parameters, most of them small, and a kernel for each would cost more to launch than to run.
//!
//! ```text
//! ops.rs      the passes as operations of a backend, and on all cores of the CPU
//! squares.rs  sums of squares on a device
//! scaled.rs   products with a factor, and casts, on a device
//! sums.rs     sums of pairs on a device
//! ```

mod ops;
#[cfg(feature = "cube")]
mod scaled;
#[cfg(feature = "cube")]
mod squares;
#[cfg(feature = "cube")]
mod sums;
#[cfg(test)]
mod tests;

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
#[cfg(feature = "cube")]
use burn::tensor::DType;
use burn::tensor::{FloatDType, Tensor};

pub use ops::ManyOps;
#[cfg(feature = "cube")]
pub(crate) use scaled::joined_and_scaled;

#[cfg(feature = "cube")]
use crate::cube::{has_kernels, into_dispatch, of_cube};
use crate::half::HalfOps;
#[cfg(feature = "cube")]
use crate::off::Kernel;

/// Returns the sum of the squares of all elements of all tensors, of any ranks and float dtypes, in f32. Its shape is
/// `[1]`. It is infinite or NaN if an element is, or if the sum is above f32's limit.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let (a, b) = (Tensor::<1>::from_data([1.0, 2.0], &device), Tensor::<2>::from_data([[2.0]], &device));
/// let sum = firebrick_kernels::sum_of_squares(vec![a.into_dispatch(), b.into_dispatch()]);
/// assert_eq!(sum.into_scalar::<f32>(), 9.0);
/// ```
///
/// # Panics
///
/// If there are no tensors, since they say which device computes, or if they are on several devices.
pub fn sum_of_squares(tensors: Vec<DispatchTensor>) -> Tensor<1> {
    sum_or_root(tensors, false)
}

/// Returns the L2 norm of all elements of all tensors together, the root of their [`sum_of_squares`].
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let (a, b) = (Tensor::<1>::from_data([3.0], &device), Tensor::<2>::from_data([[4.0]], &device));
/// let norm = firebrick_kernels::l2_norm(vec![a.into_dispatch(), b.into_dispatch()]);
/// assert_eq!(norm.into_scalar::<f32>(), 5.0);
/// ```
///
/// # Panics
///
/// Like [`sum_of_squares`].
pub fn l2_norm(tensors: Vec<DispatchTensor>) -> Tensor<1> {
    sum_or_root(tensors, true)
}

/// Returns the sum of squares, or its root.
fn sum_or_root(tensors: Vec<DispatchTensor>, root: bool) -> Tensor<1> {
    assert!(!tensors.is_empty(), "a sum of squares needs a tensor, for its device");
    #[cfg(feature = "cube")]
    if !Kernel::Many.is_off() && has_kernels(&tensors) {
        let sum = squares::sum_of_squares(of_cube(tensors), root);
        return Tensor::from_dispatch(into_dispatch(vec![sum]).remove(0));
    }
    let sums = tensors.into_iter().map(<Dispatch as ManyOps>::squared_sum).collect();
    let sum = Tensor::from_dispatch(Dispatch::float_sum(Dispatch::float_cat(sums, 0)));
    if root { sum.sqrt() } else { sum }
}

/// Multiplies each tensor, of any rank and float dtype, by the factor, and returns them in the same order and dtypes.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let (a, b) = (Tensor::<1>::from_data([1.0, 2.0], &device), Tensor::<2>::from_data([[3.0]], &device));
/// let factor = Tensor::<1>::from_data([0.5], &device);
/// let scaled = firebrick_kernels::scale_all(vec![a.into_dispatch(), b.into_dispatch()], factor);
/// let [_, b] = scaled.try_into().unwrap();
/// assert_eq!(Tensor::<2>::from_dispatch(b).into_scalar::<f32>(), 1.5);
/// ```
///
/// # Panics
///
/// If the tensors and the factor are on several devices, or the factor isn't `[1]`.
pub fn scale_all(tensors: Vec<DispatchTensor>, factor: Tensor<1>) -> Vec<DispatchTensor> {
    assert_eq!(factor.dims(), [1], "there is one factor for all tensors");
    if tensors.is_empty() {
        return tensors;
    }
    let factor = factor.into_dispatch();
    #[cfg(feature = "cube")]
    if !Kernel::Many.is_off() && has_kernels(tensors.iter().chain([&factor])) {
        return into_dispatch(scaled::scale_all(of_cube(tensors), of_cube(vec![factor]).remove(0)));
    }
    tensors.into_iter().map(|x| <Dispatch as ManyOps>::scaled(x, factor.clone())).collect()
}

/// Multiplies each tensor, of any rank and float dtype, by `min(1, max / (norm + 1e-6))`, as torch's `clip_grad_norm_`, and
/// returns the products in the same order, each in the dtype beside its tensor. The norm is `[1]` in f32; if it is NaN, so is
/// each element.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
///
/// let device = Device::flex();
/// let (x, norm) = (Tensor::<1>::from_data([4.0], &device), Tensor::<1>::from_data([4.0], &device));
/// let tensors = vec![(x.into_dispatch(), FloatDType::F32)];
/// let clipped = firebrick_kernels::clip_all(tensors, norm, 2.0).remove(0);
/// assert!((Tensor::<1>::from_dispatch(clipped).into_scalar::<f32>() - 2.0).abs() < 1e-5);
/// ```
///
/// # Panics
///
/// If the tensors and the norm are on several devices, or the norm isn't `[1]`.
pub fn clip_all(
    tensors: Vec<(DispatchTensor, FloatDType)>,
    norm: Tensor<1>,
    max: f64,
) -> Vec<DispatchTensor> {
    assert_eq!(norm.dims(), [1], "there is one norm of all tensors");
    let (tensors, dtypes): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
    #[cfg(feature = "cube")]
    if dtypes.iter().all(|dtype| is_written(*dtype)) && !Kernel::Many.is_off() && !tensors.is_empty() {
        let norm = norm.clone().into_dispatch();
        if has_kernels(tensors.iter().chain([&norm])) {
            let dtypes = dtypes.into_iter().map(DType::from).collect();
            let norm = of_cube(vec![norm]).remove(0);
            return into_dispatch(scaled::clip_all(of_cube(tensors), dtypes, norm, max as f32));
        }
    }
    let cast = |(x, dtype)| <Dispatch as HalfOps>::fast_cast(x, dtype);
    let tensors = tensors.into_iter().zip(dtypes).map(cast).collect();
    scale_all(tensors, ((norm + 1e-6).recip() * max).clamp_max(1.0))
}

/// Divides each tensor, of any rank and float dtype, by the divisor, and returns the quotients in `dtype`. They are
/// computed in f32, or in f64 if `dtype` is f64. With the divisor 1 it only casts.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
///
/// let x = Tensor::<1>::from_data([1.0, 2.0], &Device::flex()).cast(FloatDType::F16);
/// let cast = firebrick_kernels::cast_all(vec![x.into_dispatch()], FloatDType::F32, 4.0);
/// let [x] = cast.try_into().unwrap();
/// assert_eq!(Tensor::<1>::from_dispatch(x).into_data().try_to_vec::<f32>().unwrap(), [0.25, 0.5]);
/// ```
///
/// # Panics
///
/// If the tensors are on several devices.
pub fn cast_all(tensors: Vec<DispatchTensor>, dtype: FloatDType, divisor: f64) -> Vec<DispatchTensor> {
    #[cfg(feature = "cube")]
    if is_written(dtype) && !tensors.is_empty() && !Kernel::Many.is_off() && has_kernels(&tensors) {
        return into_dispatch(scaled::cast_all(of_cube(tensors), dtype.into(), divisor as f32));
    }
    ops::cast_all::<Dispatch>(tensors, dtype, divisor)
}

/// Adds each tensor, of any rank and float dtype, to its partner, which has the same shape, and returns the sums in `dtype`.
/// They are computed in f32, or in f64 if `dtype` is f64.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
///
/// let x = Tensor::<1>::from_data([1.0, 2.0], &Device::flex());
/// let sums = firebrick_kernels::add_all(
///     vec![x.clone().into_dispatch()],
///     vec![x.cast(FloatDType::F16).into_dispatch()],
///     FloatDType::F32,
/// );
/// let [sum] = sums.try_into().unwrap();
/// assert_eq!(Tensor::<1>::from_dispatch(sum).into_data().try_to_vec::<f32>().unwrap(), [2.0, 4.0]);
/// ```
///
/// # Panics
///
/// If the partners are not as many as the tensors and of their shapes, or are on several devices.
pub fn add_all(
    tensors: Vec<DispatchTensor>,
    others: Vec<DispatchTensor>,
    dtype: FloatDType,
) -> Vec<DispatchTensor> {
    let alike = |(x, y): (&DispatchTensor, &DispatchTensor)| x.shape() == y.shape();
    let fits = tensors.len() == others.len() && tensors.iter().zip(&others).all(alike);
    assert!(fits, "each tensor is added to a partner of its shape");
    if tensors.is_empty() {
        return tensors;
    }
    #[cfg(feature = "cube")]
    if is_written(dtype) && !Kernel::Many.is_off() && has_kernels(tensors.iter().chain(&others)) {
        return into_dispatch(sums::add_all(of_cube(tensors), of_cube(others), dtype.into()));
    }
    ops::add_all::<Dispatch>(tensors, others, dtype)
}

/// Returns whether the kernels write a dtype.
#[cfg(feature = "cube")]
fn is_written(dtype: FloatDType) -> bool {
    matches!(dtype, FloatDType::F32 | FloatDType::F16 | FloatDType::BF16)
}
