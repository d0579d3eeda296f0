//! Sums of a residual branch and its input, with the branch's dropout, in one pass over memory.
//!
//! On Flex, Burn's sum of two tensors runs on one core, and dropout before it is three more passes. Here one pass on all
//! cores reads both tensors and writes the sum in the place of one that nothing else holds. The backward pass keeps
//! nothing but the keys of the dropout's mask: 8 bytes for each line along the last axis, 4 for each of its elements.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Tensor};

use crate::autodiff::differentiable;
use crate::dropout::{DropMask, DropoutOps, Site, mask_of};
use crate::elements::{in_blocks, mapped};
use crate::off::Kernel;

/// Adds two tensors of the same shape and dtype. Both receive the gradient of the sum.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<1>::from_data([1.0, 2.0], &Device::flex());
/// let sum = firebrick_kernels::add(x.clone(), x);
/// assert_eq!(sum.into_data().iter::<f32>().collect::<Vec<_>>(), [2.0, 4.0]);
/// ```
///
/// # Panics
///
/// If the shapes cannot be broadcast or the dtypes differ, like Burn's sum.
pub fn add<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    if !fits(&x, &y) {
        return x + y;
    }
    Tensor::from_dispatch(<Dispatch as ResidualOps>::sum(x.into_dispatch(), y.into_dispatch()))
}

/// Returns `x + dropout(y, ..)`, with the mask of [`dropout`](crate::dropout) for the same arguments. In half precision
/// it computes in f32 and rounds once.
///
/// # Panics
///
/// If the shapes cannot be broadcast or the dtypes differ, or as [`dropout`](crate::dropout()).
pub fn add_dropout<const D: usize>(
    x: Tensor<D>,
    y: Tensor<D>,
    prob: f64,
    positions: &[usize],
    site: Site,
) -> Tensor<D> {
    let mask = if fits(&x, &y) { mask_of(&y, prob, positions, site) } else { None };
    match mask {
        None => add(x, crate::dropout(y, prob, positions, site)),
        Some(mask) => with_dropped(x, y, mask),
    }
}

fn with_dropped<const D: usize>(x: Tensor<D>, y: Tensor<D>, mask: Arc<DropMask>) -> Tensor<D> {
    let [x, y] = [x, y].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as ResidualOps>::sum_with_dropped(x, y, mask))
}

fn fits<const D: usize>(x: &Tensor<D>, y: &Tensor<D>) -> bool {
    let narrow = matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16);
    narrow && x.dtype() == y.dtype() && x.dims() == y.dims() && !Kernel::Residual.is_off()
}

/// Sums of a residual branch and its input. The defaults are Burn's own operations.
///
/// Call [`add`] and [`add_dropout`], which take tensors. On backends outside this
/// crate's features, they panic.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait ResidualOps: DropoutOps {
    /// Returns `x + y`, of one shape and dtype.
    fn sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(x, y)
    }

    /// Returns `x` plus `y` with some of its elements dropped.
    fn sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        Self::float_add(x, Self::dropped(y, mask))
    }
}

#[cfg(feature = "cube")]
impl ResidualOps for burn::backend::Cube {
    fn sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        crate::dropout::cube::dropped_onto(x, y, &mask)
    }
}

impl<B: ResidualOps, C: CheckpointStrategy> ResidualOps for Autodiff<B, C> {
    fn sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
        differentiable::<B, C, _, _>(
            [x, y],
            |[x, y]| (B::sum(x, y), ()),
            |(), grad, [to_x, to_y]| [to_x.then(|| grad.clone()), to_y.then_some(grad)],
        )
    }

    fn sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        differentiable::<B, C, _, _>(
            [x, y],
            |[x, y]| (B::sum_with_dropped(x, y, mask.clone()), mask),
            |mask, grad, [to_x, to_y]| {
                let of_y = to_y.then(|| B::dropped(grad.clone(), mask));
                [to_x.then_some(grad), of_y]
            },
        )
    }
}

impl ResidualOps for Flex {
    fn sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
        mapped([x, y], |[x, y]| x + y)
    }

    fn sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        let mask = &*mask;
        in_blocks(
            [x, y],
            #[inline(always)]
            |at, [x, y]: [&[f32]; 2], sum: &mut [f32]| {
                mask.drop_from(at, y, sum);
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            },
        )
    }
}
