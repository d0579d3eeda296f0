//! Products in half precision as operations of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Shape};

/// The dtype in which a backend multiplies, and the conversion to it.
pub trait Convert: Backend {
    /// Returns the dtype in which a product of operands in `dtype` is computed: `dtype` itself if the backend supports
    /// it.
    fn computes_in(dtype: DType) -> DType {
        dtype
    }

    /// Converts `x` to `dtype`, which may be its own.
    fn convert(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        if x.dtype() == dtype.into() { x } else { Self::float_cast(x, dtype) }
    }
}

/// Products of operands in half precision. The default of each is Burn's own operation.
///
/// Call [`matmul`](super::matmul), [`linear`](super::linear) and [`cast`](super::cast), which take tensors. On backends
/// outside this crate's features, they panic in half precision.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait HalfOps: Backend {
    /// Multiplies `[.., m, k]` by `[.., k, n]`, of equal rank and dtype; leading axes are broadcast.
    fn half_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(lhs, rhs)
    }

    /// Returns `x · weight + bias` for `[rows, in]`, `[in, out]` and `[out]`, all in one dtype.
    fn half_affine(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::linear(x, weight, Some(bias))
    }

    /// Casts `x` to another float dtype.
    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        Self::float_cast(x, dtype)
    }
}

/// Returns whether products in `dtype` are computed in another dtype.
pub(super) fn widens<B: Convert>(dtype: DType) -> bool {
    B::computes_in(dtype) != dtype
}

/// Converts an operand to the dtype in which its product is computed.
pub(super) fn wide<B: Convert>(x: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = FloatDType::from(B::computes_in(x.dtype()));
    B::convert(x, dtype)
}

/// Converts a result back to the dtype of the operands.
pub(super) fn narrow<B: Convert>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    B::convert(x, FloatDType::from(dtype))
}

pub(super) fn matmul<B: Convert>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = lhs.dtype();
    narrow::<B>(B::float_matmul(wide::<B>(lhs), wide::<B>(rhs)), dtype)
}

pub(super) fn affine<B: Convert>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
) -> FloatTensor<B> {
    let dtype = x.dtype();
    let bias = wide::<B>(bias);
    let row = Shape::new([1, bias.shape()[0]]);
    let product = B::float_matmul(wide::<B>(x), wide::<B>(weight));
    narrow::<B>(B::float_add(product, B::float_reshape(bias, row)), dtype)
}

#[cfg(feature = "cube")]
impl Convert for burn::backend::Cube {}
#[cfg(feature = "cube")]
impl HalfOps for burn::backend::Cube {}

#[cfg(feature = "flex")]
impl HalfOps for burn::backend::Flex {
    fn half_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        matmul::<Self>(lhs, rhs)
    }

    fn half_affine(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        affine::<Self>(x, weight, bias)
    }

    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        Self::convert(x, dtype)
    }
}
