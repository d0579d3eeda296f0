//! The rotation as an operation of a backend, with its gradient, which is the inverse rotation.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::Slice;

use crate::autodiff::differentiable;
use crate::half::{to_dtype, wide};

/// Rotations by positions. The default uses Burn's operations. Call [`rotary`](crate::rotary), which takes tensors.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait RotaryOps: Backend {
    /// Rotates `x`, `[batch, heads, length, size]`, or back.
    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, cos, sin, back)
    }
}

/// Rotates with Burn's operations.
pub(super) fn composed<B: Backend>(
    x: FloatTensor<B>,
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
    back: bool,
) -> FloatTensor<B> {
    let dtype = x.dtype();
    let x = wide::<B>(x);
    let [cos, sin] = [cos, sin].map(|angles| to_dtype::<B>(angles, x.dtype()));
    let sin = if back { B::float_neg(sin) } else { sin };
    let [batch, heads, length, size] = x.shape().dims();
    let half = |from: usize| {
        let whole = |size: usize| Slice::new(0, Some(size as isize), 1);
        let part = Slice::new(from as isize, Some((from + size / 2) as isize), 1);
        B::float_slice(x.clone(), &[whole(batch), whole(heads), whole(length), part])
    };
    let (one, other) = (half(0), half(size / 2));
    let first =
        B::float_sub(B::float_mul(one.clone(), cos.clone()), B::float_mul(other.clone(), sin.clone()));
    let second = B::float_add(B::float_mul(other, cos), B::float_mul(one, sin));
    to_dtype::<B>(B::float_cat(vec![first, second], 3), dtype)
}

impl<B: RotaryOps, C: CheckpointStrategy> RotaryOps for Autodiff<B, C> {
    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self> {
        let [cos, sin] = [cos, sin].map(<FloatTensor<Self>>::into_primitive);
        differentiable::<B, C, _, _>(
            [x],
            |[x]| (B::rotated(x, cos.clone(), sin.clone(), back), (cos, sin, back)),
            |(cos, sin, back), grad, _| [Some(B::rotated(grad, cos, sin, !back))],
        )
    }
}
