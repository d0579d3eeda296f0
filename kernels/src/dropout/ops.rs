//! Dropout as an operation of a backend, with its gradient.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, backend_extension};

use super::drop_mask::DropMask;
use crate::autodiff::differentiable;
use crate::elements::in_blocks;

/// Dropout with its gradient, which is the same dropout.
///
/// Call [`dropout`](super::dropout), which takes tensors. On backends outside this crate's features, it panics.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait DropoutOps: Backend {
    /// Replaces the dropped elements by 0 and scales the others. `x` is in f32 or narrower, and not empty.
    fn dropped(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self>;
}

impl DropoutOps for Flex {
    fn dropped(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        let mask = &*mask;
        in_blocks(
            [x],
            #[inline(always)]
            |at, [x]: [&[f32]; 1], out: &mut [f32]| mask.drop_from(at, x, out),
        )
    }
}

impl<B: DropoutOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn dropped(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        differentiable::<B, C, _, _>(
            [x],
            |[x]| (B::dropped(x, mask.clone()), mask),
            |mask, grad, _| [Some(B::dropped(grad, mask))],
        )
    }
}
