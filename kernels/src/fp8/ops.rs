//! The map as an operation of a backend, with its gradient, and that of rounding.

use std::array::from_fn;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, bf16, f16};
use rayon::prelude::*;

use super::{Fp8, Rounding};
use crate::autodiff::{differentiable, differentiable_with_inputs};
use crate::flex::{Buffer, Lane, TASK, adjacent, elements, tensor};
use crate::product::{ProductOps, of_rows, rows, value};

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

/// Computes the map of an input, a weight, and a bias if there are three.
fn mapped<B: Fp8Products, C: CheckpointStrategy, const N: usize>(
    operands: [FloatTensor<Autodiff<B, C>>; N],
) -> FloatTensor<Autodiff<B, C>> {
    let mut keeps = [false; N];
    (keeps[0], keeps[1]) = (operands[1].is_tracked(), operands[0].is_tracked());
    differentiable_with_inputs::<B, C, _, N>(
        operands,
        keeps,
        |operands| {
            let mut operands = operands.into_iter();
            let mut next = || operands.next().expect("a map has an input and a weight");
            let (x, weight) = (next(), next());
            let bias = operands.next();
            let map = |x, weight| of_rows::<B>(x, |rows| B::fp8_map(rows, weight, bias));
            (value::<B>(x, weight, map), ())
        },
        |operands, (), grad, wanted| {
            let mut operands = operands.into_iter();
            let mut next = || operands.next().flatten();
            let (x, weight) = (next().map(rows::<B>), next());
            let mut shape = grad.shape();
            if let Some(weight) = &weight {
                let last = shape.num_dims() - 1;
                shape[last] = weight.shape()[0];
            }
            let grad = rows::<B>(grad);
            let of_bias = wanted.get(2).is_some_and(|wanted| *wanted).then(|| B::column_sums(grad.clone()));
            let [of_x, of_weight] = B::fp8_gradients(x, weight, grad);
            let of_x = of_x.map(|of_x| B::float_reshape(of_x, shape));
            let mut found = [of_x, of_weight, of_bias].into_iter();
            from_fn(|_| found.next().flatten())
        },
    )
}

impl<B: Fp8Products, C: CheckpointStrategy> Fp8Ops for Autodiff<B, C> {
    fn round_to_fp8(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self> {
        // Rounding is taken for the identity.
        differentiable::<B, C, _, _>([x], |[x]| (in_fp8::<B>(x, format), ()), |(), grad, _| [Some(grad)])
    }

    fn fp8_product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        mapped::<B, C, 2>([x, weight])
    }

    fn fp8_affine(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        mapped::<B, C, 3>([x, weight, bias])
    }
}

/// Elements that are rounded in one loop.
const PIECE: usize = 1 << 10;

impl Fp8Products for Flex {
    fn rounded(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self> {
        match x.dtype() {
            DType::F32 => of::<f32>(x, format),
            DType::BF16 => of::<bf16>(x, format),
            DType::F16 => of::<f16>(x, format),
            dtype => unreachable!("8 bits are rounded from f32, bf16 and f16, not {dtype:?}"),
        }
    }
}

fn of<T: Lane>(x: FlexTensor, format: Fp8) -> FlexTensor {
    let (shape, x) = (x.shape(), adjacent(x));
    let elements = elements::<T>(&x);
    let most = |part: &[T]| part.iter().fold(0, |most, x| most.max(x.wide().to_bits() & 0x7FFF_FFFF));
    let rounding = Rounding::of(elements.par_chunks(TASK).map(most).max().unwrap_or(0), format);
    let mut found = Buffer::new(elements.len());
    found.parts(TASK).zip(elements.par_chunks(TASK)).for_each(|(mut found, elements)| {
        for (found, elements) in found.pieces(PIECE).zip(elements.chunks(PIECE)) {
            found.write(elements.len(), |at| T::narrow(rounding.round(elements[at].wide())));
        }
    });
    tensor(found.finish(), shape)
}
