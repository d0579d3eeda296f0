//! Products whose values nobody reads.

use std::cell::Cell;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Scalar, TensorMetadata};

use super::ProductOps;
use crate::zero_results::within;

thread_local! {
    static UNREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs operations whose values nobody reads, only their gradients: a product or an affine map of this crate computes
/// nothing, and its elements are NaN, so that a result that does depend on them shows it. The gradients are those of the
/// same operations outside.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{matmul, with_unread_products};
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::from_data([[1.0, 2.0]], &device).require_grad();
/// let weight = Tensor::from_data([[3.0], [4.0]], &device);
/// let product = with_unread_products(|| matmul(x.clone(), weight));
/// assert!(product.clone().into_scalar::<f32>().is_nan());
/// assert_eq!(x.grad(&product.backward()).unwrap().into_data().iter::<f32>().collect::<Vec<_>>(), [3.0, 4.0]);
/// ```
pub fn with_unread_products<T>(run: impl FnOnce() -> T) -> T {
    within(&UNREAD, true, run)
}

/// Runs operations whose values a gradient needs, within [`with_unread_products`]: their products are computed.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{matmul, with_read_products, with_unread_products};
///
/// let x = Tensor::<2>::from_data([[1.0, 2.0]], &Device::flex());
/// let weight = Tensor::from_data([[3.0], [4.0]], &Device::flex());
/// let product = with_unread_products(|| with_read_products(|| matmul(x, weight)));
/// assert_eq!(product.into_scalar::<f32>(), 11.0);
/// ```
pub fn with_read_products<T>(run: impl FnOnce() -> T) -> T {
    within(&UNREAD, false, run)
}

/// Returns the product of `[.., m, k]` and `[.., k, n]` that `compute` computes, or NaN where nobody reads it. A matrix
/// `[k, n]` multiplies all rows.
pub(crate) fn value<B: ProductOps>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    compute: impl FnOnce(FloatTensor<B>, FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<B> {
    if !UNREAD.get() {
        return compute(lhs, rhs);
    }
    let (mut shape, of_rhs) = (lhs.shape(), rhs.shape());
    let last = shape.num_dims() - 1;
    if of_rhs.num_dims() == shape.num_dims() {
        for axis in 0..last - 1 {
            // An axis of size 1 is broadcast.
            shape[axis] = if shape[axis] == 1 { of_rhs[axis] } else { shape[axis] };
        }
    }
    shape[last] = of_rhs[of_rhs.num_dims() - 1];
    B::float_full(shape, Scalar::Float(f64::NAN), &lhs.device(), lhs.dtype().into())
}
