//! Sums of a residual branch and its input, with the branch's dropout, in one pass over memory.
//!
//! On Flex, Burn's sum of two tensors runs on one core, and dropout before it is three more passes. Here one pass on all
//! cores reads both tensors and writes the sum in the place of one that nothing else holds. The backward pass keeps
//! nothing but the keys of the dropout's mask: 8 bytes for each line along the last axis, 4 for each of its elements.
//!
//! ```text
//! ops.rs   the operations of a backend, with their gradients
//! flex.rs  slices on all cores
//! ```

mod flex;
mod ops;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::dropout::{DropMask, Site, mask_of};
use crate::off::Kernel;

pub use ops::ResidualOps;

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
