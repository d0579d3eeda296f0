//! The map as an operation of a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType};

use super::Fp8;
use crate::product::{ProductOps, of_rows};

/// The maps of a backend, without gradients. The defaults multiply rounded operands.
pub trait Fp8Products: ProductOps {
    /// Rounds the elements of a tensor in f32, bf16 or f16.
    fn rounded(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self>;

    /// Returns `x · weight + bias` for `[rows, in]`, `[in, out]` and `[out]`, of rounded `x` and `weight`.
    fn fp8_map(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        map::<Self>(x, weight, bias)
    }

    /// Returns the gradients of the input and of the weight for a gradient of the result, `[rows, out]`. The first is computed
    /// if the weight is given, the second if the input is; otherwise it is `None`.
    fn fp8_gradients(
        x: Option<FloatTensor<Self>>,
        weight: Option<FloatTensor<Self>>,
        grad: FloatTensor<Self>,
    ) -> [Option<FloatTensor<Self>>; 2] {
        gradients::<Self>(x, weight, grad)
    }
}

/// Multiplies rounded operands.
pub(super) fn map<B: Fp8Products>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let [x, weight] = [x, weight].map(|operand| in_fp8::<B>(operand, Fp8::E4m3));
    match bias {
        Some(bias) => B::affine(x, weight, bias),
        None => B::product(x, weight),
    }
}

/// Multiplies rounded operands and the rounded gradient.
pub(super) fn gradients<B: Fp8Products>(
    x: Option<FloatTensor<B>>,
    weight: Option<FloatTensor<B>>,
    grad: FloatTensor<B>,
) -> [Option<FloatTensor<B>>; 2] {
    let grad = in_fp8::<B>(grad, Fp8::E5m2);
    let [x, weight] = [x, weight].map(|operand| operand.map(|operand| in_fp8::<B>(operand, Fp8::E4m3)));
    let of_x = weight.map(|weight| B::product(grad.clone(), B::float_transpose(weight)));
    let of_weight = x.map(|x| B::product(B::float_transpose(x), grad));
    [of_x, of_weight]
}

/// Rounds the elements of a tensor. In f64 they are rounded from f32.
pub(super) fn in_fp8<B: Fp8Products>(x: FloatTensor<B>, format: Fp8) -> FloatTensor<B> {
    match x.dtype() {
        DType::F64 => {
            let rounded = B::rounded(B::float_cast(x, FloatDType::F32), format);
            B::float_cast(rounded, FloatDType::F64)
        }
        _ if x.shape().num_elements() == 0 => x,
        _ => B::rounded(x, format),
    }
}

/// Maps in 8 bits with gradients of their own.
///
/// Call [`linear_in_fp8`](super::linear_in_fp8) and [`round_to_fp8`](super::round_to_fp8), which take tensors. On backends
/// outside this crate's features, they panic.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait Fp8Ops: Backend {
    /// Rounds each element.
    fn round_to_fp8(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self>;

    /// Returns `x · weight` for `[.., in]` and `[in, out]`.
    fn fp8_product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns `x · weight + bias` for `[.., in]`, `[in, out]` and `[out]`.
    fn fp8_affine(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl<B: Fp8Products> Fp8Ops for B {
    fn round_to_fp8(x: FloatTensor<B>, format: Fp8) -> FloatTensor<B> {
        in_fp8::<B>(x, format)
    }

    fn fp8_product(x: FloatTensor<B>, weight: FloatTensor<B>) -> FloatTensor<B> {
        of_rows::<B>(x, |rows| B::fp8_map(rows, weight, None))
    }

    fn fp8_affine(x: FloatTensor<B>, weight: FloatTensor<B>, bias: FloatTensor<B>) -> FloatTensor<B> {
        of_rows::<B>(x, |rows| B::fp8_map(rows, weight, Some(bias)))
    }
}
