//! Rotary positions: pairs of a head's numbers are rotated by angles that grow with the position, in one pass.
//!
//! ```text
//! cube.rs  pairs on a device, of any view
//! ```

#[cfg(feature = "cube")]
mod cube;
#[cfg(test)]
mod tests;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Slice, Tensor, bf16, f16};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use crate::autodiff::differentiable;
use crate::flex::{Buffer, Lane, Part, TASK, adjacent, elements, tensor};
use crate::half::{to_dtype, wide};
use crate::off::Kernel;

/// Rotates `x`, `[batch, heads, length, size]`, by the angles of `cos` and `sin`, in f32 (Su et al., 2021,
/// arXiv:2104.09864). Returns the shape and dtype of `x`.
///
/// A pair is a number in the first half of the last axis and the number at the same place in the second half, as in
/// Hugging Face's layout. `cos` and `sin` are `[batch, 1, length, size / 2]` in f32, or with 1 row for the whole batch.
/// They are constants: they have no gradient. The backward pass keeps them, and nothing else.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::rotary;
///
/// let device = Device::flex();
/// let x = Tensor::<4>::from_data([[[[1.0, 2.0]]]], &device);
/// // A quarter of a turn.
/// let (cos, sin) = (Tensor::zeros([1, 1, 1, 1], &device), Tensor::ones([1, 1, 1, 1], &device));
/// assert_eq!(rotary(x, cos, sin).into_data().iter::<f32>().collect::<Vec<_>>(), [-2.0, 1.0]);
/// ```
///
/// # Panics
///
/// If the shapes do not fit, or `size` is odd.
pub fn rotary(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [batch, _, length, size] = x.dims();
    let [rows, ..] = cos.dims();
    let fits = size % 2 == 0 && (rows == batch || rows == 1) && cos.dims() == [rows, 1, length, size / 2];
    assert!(
        fits && sin.dims() == cos.dims(),
        "angles of {:?} are [{batch} or 1, 1, {length}, {size} / 2]; found {:?} and {:?}",
        x.dims(),
        cos.dims(),
        sin.dims(),
    );
    let [x, cos, sin] = [x, cos, sin].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as RotaryOps>::rotated(x, cos, sin, false))
}

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
fn composed<B: Backend>(
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

impl RotaryOps for Flex {
    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self> {
        match (x.dtype(), cos.dtype(), sin.dtype()) {
            _ if x.layout().num_elements() == 0 => x,
            _ if Kernel::Rotary.is_off() => composed::<Self>(x, cos, sin, back),
            (DType::F32, DType::F32, DType::F32) => turned::<f32>(x, cos, sin, back),
            (DType::BF16, DType::F32, DType::F32) => turned::<bf16>(x, cos, sin, back),
            (DType::F16, DType::F32, DType::F32) => turned::<f16>(x, cos, sin, back),
            _ => composed::<Self>(x, cos, sin, back),
        }
    }
}

fn turned<T: Lane>(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, back: bool) -> FlexTensor {
    // The heads of a projection are a view whose rows are whole.
    let strides = x.layout().strides();
    let rows_are_whole = strides[3] == 1 && strides.iter().all(|stride| *stride >= 0);
    let x = if rows_are_whole { x } else { x.to_contiguous() };
    let (cos, sin) = (adjacent(cos), adjacent(sin));
    let shape = x.layout().shape().clone();
    let [_, heads, length, size] = shape.dims();
    let rows = shape.num_elements() / size;
    let strides = x.layout().strides();
    let strides = [strides[0], strides[1], strides[2]].map(|stride| stride as usize);
    let of_all = cos.layout().shape()[0] == 1;
    let (from, start) = (x.storage::<T>(), x.layout().start_offset());
    let (cos, sin) = (elements::<f32>(&cos), elements::<f32>(&sin));
    let at_once = (TASK / size).max(1);
    let arch = Arch::new();
    let mut found = Buffer::<T>::new(rows * size);
    found.parts(at_once * size).enumerate().for_each(|(part, found)| {
        let first = part * at_once;
        let row = |row: usize| {
            let [of_batch, of_head, at] = [row / length / heads, row / length % heads, row % length];
            let offset = start + of_batch * strides[0] + of_head * strides[1] + at * strides[2];
            let angles = if of_all { at } else { of_batch * length + at } * (size / 2);
            (&from[offset..][..size], &cos[angles..][..size / 2], &sin[angles..][..size / 2])
        };
        let rows = first..(first + at_once).min(rows);
        arch.dispatch(Turn { rows: rows.map(row), found, size, back });
    });
    tensor(found.finish(), shape)
}

/// The rows of one task, compiled for the vectors of each kind of processor.
struct Turn<'a, I, T> {
    rows: I,
    found: Part<'a, T>,
    size: usize,
    back: bool,
}

impl<'a, T: Lane, I: Iterator<Item = (&'a [T], &'a [f32], &'a [f32])>> NullaryFnOnce for Turn<'_, I, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { rows, mut found, size, back } = self;
        let (half, sign) = (size / 2, if back { -1.0 } else { 1.0 });
        let mut pieces = found.pieces(half);
        for (row, cos, sin) in rows {
            let (one, other) = row.split_at(half);
            let (Some(first), Some(second)) = (pieces.next(), pieces.next()) else { return };
            // Makes the equal lengths visible to the compiler.
            let (one, other) = (&one[..half], &other[..half]);
            let (cos, sin) = (&cos[..half], &sin[..half]);
            first.write(half, |at| T::narrow(one[at].wide() * cos[at] - other[at].wide() * (sign * sin[at])));
            second
                .write(half, |at| T::narrow(other[at].wide() * cos[at] + one[at].wide() * (sign * sin[at])));
        }
    }
}
