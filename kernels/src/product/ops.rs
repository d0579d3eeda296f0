//! Products as operations of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};

use crate::half::HalfOps;
use crate::off::Kernel;

/// Returns whether this crate computes products in a dtype. Otherwise they, and their gradients, are Burn's.
pub(crate) fn owns(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16) && !Kernel::Products.is_off()
}

/// Products with gradients of their own. The defaults are Burn's own operations.
///
/// Call [`matmul`](super::matmul) and [`linear`](super::linear), which take tensors. On backends outside this crate's
/// features, they panic.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait ProductOps: HalfOps {
    /// Multiplies `[.., m, k]` by `[.., k, n]`, of equal rank and dtype; leading axes are broadcast.
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(lhs, rhs)
    }

    /// Returns `x · weight + bias` for `[.., in]`, `[in, out]` and `[out]`, all in one dtype.
    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        of_rows::<Self>(x, |rows| Self::linear(rows, weight, Some(bias)))
    }

    /// Sums `[rows, out]` over its rows.
    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        column_sums::<Self>(x)
    }

    /// Returns the gradients of the weight and the bias of an affine map of `[rows, in]`, given that of its result,
    /// `[rows, out]`.
    fn affine_gradients(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (Self::product(Self::float_transpose(x), grad.clone()), Self::column_sums(grad))
    }
}

/// Applies `of` to the matrix of all rows of `x`, and restores the axes before the last one.
pub(crate) fn of_rows<B: Backend>(
    x: FloatTensor<B>,
    of: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<B> {
    let mut shape = x.shape();
    let found = of(rows::<B>(x));
    let last = shape.num_dims() - 1;
    shape[last] = found.shape()[1];
    B::float_reshape(found, shape)
}

/// Returns the matrix of all rows of `[.., cols]`.
pub(crate) fn rows<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    let last = shape.num_dims() - 1;
    let rows = (0..last).map(|axis| shape[axis]).product();
    B::float_reshape(x, Shape::new([rows, shape[last]]))
}

/// Sums over rows with Burn's operations.
pub(super) fn column_sums<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let cols = x.shape()[1];
    B::float_reshape(B::float_sum_dim(x, 0), Shape::new([cols]))
}
