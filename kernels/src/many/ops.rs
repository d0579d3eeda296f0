//! The passes over one tensor as operations of a backend, those over pairs by Burn's operations, and the passes on Flex, on
//! all cores: Flex itself multiplies and sums on one.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, Scalar, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Shape, bf16, f16};
use rayon::prelude::*;

use crate::elements::{is_narrow, mapped};
use crate::flex::{Lane, TASK, adjacent, elements, sum_of, tensor};
use crate::half::{HalfOps, to_dtype};
use crate::off::Kernel;

/// Passes over the elements of a tensor. The defaults are Burn's own operations.
///
/// Call [`sum_of_squares`](super::sum_of_squares) and [`scale_all`](super::scale_all), which take the tensors of a model. On
/// backends outside this crate's features, these panic.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait ManyOps: Backend {
    /// Returns the sum of the squares of all elements, `[1]`, in f32.
    fn squared_sum(x: FloatTensor<Self>) -> FloatTensor<Self> {
        squared_sum::<Self>(x)
    }

    /// Multiplies a tensor by the factor, `[1]`, in f32 if the tensor is narrower, so that it is rounded once.
    fn scaled(x: FloatTensor<Self>, factor: FloatTensor<Self>) -> FloatTensor<Self> {
        scaled::<Self>(x, factor)
    }
}

#[cfg(feature = "cube")]
impl ManyOps for burn::backend::Cube {}

impl<B: Backend, C: CheckpointStrategy> ManyOps for Autodiff<B, C> {}

/// Sums squares with Burn's operations.
pub(super) fn squared_sum<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let x = to_dtype::<B>(x, FloatDType::F32);
    B::float_sum(B::float_mul(x.clone(), x))
}

/// Multiplies by the factor with Burn's operations.
pub(super) fn scaled<B: Backend>(x: FloatTensor<B>, factor: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = FloatDType::from(x.dtype());
    let wide = if dtype == FloatDType::F64 { dtype } else { FloatDType::F32 };
    let factor = to_dtype::<B>(factor, wide);
    let factor = B::float_reshape(factor, Shape::from(vec![1; x.rank()]));
    to_dtype::<B>(B::float_mul(to_dtype::<B>(x, wide), factor), dtype)
}

/// Adds each tensor to its partner with Burn's operations, in f32, or in f64 if `dtype` is f64.
pub(super) fn add_all<B: Backend>(
    tensors: Vec<FloatTensor<B>>,
    others: Vec<FloatTensor<B>>,
    dtype: FloatDType,
) -> Vec<FloatTensor<B>> {
    let wide = if dtype == FloatDType::F64 { dtype } else { FloatDType::F32 };
    let added = |(x, y)| to_dtype::<B>(B::float_add(to_dtype::<B>(x, wide), to_dtype::<B>(y, wide)), dtype);
    tensors.into_iter().zip(others).map(added).collect()
}

/// Divides each tensor by the divisor and casts it with Burn's operations, in f32, or in f64 if `dtype` is f64.
pub(super) fn cast_all<B: HalfOps>(
    tensors: Vec<FloatTensor<B>>,
    dtype: FloatDType,
    divisor: f64,
) -> Vec<FloatTensor<B>> {
    let wide = if dtype == FloatDType::F64 { dtype } else { FloatDType::F32 };
    let divided = |x| match divisor {
        1.0 => x,
        divisor => B::float_div_scalar(B::fast_cast(x, wide), Scalar::Float(divisor)),
    };
    tensors.into_iter().map(|x| B::fast_cast(divided(x), dtype)).collect()
}

impl ManyOps for Flex {
    fn squared_sum(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let sum = match x.dtype() {
            _ if Kernel::Many.is_off() => return squared_sum::<Self>(x),
            DType::F32 => squares::<f32>(x),
            DType::BF16 => squares::<bf16>(x),
            DType::F16 => squares::<f16>(x),
            _ => return squared_sum::<Self>(x),
        };
        tensor(vec![sum as f32], Shape::new([1]))
    }

    fn scaled(x: FloatTensor<Self>, factor: FloatTensor<Self>) -> FloatTensor<Self> {
        match is_narrow(x.dtype()) && is_narrow(factor.dtype()) && !Kernel::Many.is_off() {
            true => {
                let factor = crate::flex::widened(factor)[0];
                mapped([x], |[x]| x * factor)
            }
            false => scaled::<Self>(x, factor),
        }
    }
}

/// Sums the squares of each task's share in f32, and these sums in f64, in an order that does not depend on the number of
/// threads.
fn squares<T: Lane>(x: FlexTensor) -> f64 {
    let x = adjacent(x);
    let share = |share: &[T]| {
        f64::from(sum_of([share], |[x]| {
            let x = x.wide();
            x * x
        }))
    };
    let sums: Vec<f64> = elements::<T>(&x).par_chunks(TASK).map(share).collect();
    sums.into_iter().sum()
}
