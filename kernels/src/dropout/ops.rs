//! Dropout as an operation of a backend.

use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

use super::drop_mask::DropMask;

/// Dropout on a backend, without gradients.
pub trait Dropping: Backend {
    /// Replaces the dropped elements by 0 and scales the others. `x` is in f32 or narrower, and not empty.
    fn dropped(x: FloatTensor<Self>, mask: &DropMask) -> FloatTensor<Self>;
}

/// Dropout with its gradient, which is the same dropout.
///
/// Call [`dropout`](super::dropout), which takes tensors. On backends outside this crate's features, it panics.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait DropoutOps: Backend {
    /// Replaces the dropped elements by 0 and scales the others.
    fn own_dropout(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self>;
}

#[cfg(feature = "cube")]
impl DropoutOps for burn::backend::Cube {
    fn own_dropout(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        Self::dropped(x, &mask)
    }
}

impl Dropping for burn::backend::Flex {
    fn dropped(x: FloatTensor<Self>, mask: &DropMask) -> FloatTensor<Self> {
        use crate::elements::in_blocks;
        in_blocks(
            [x],
            #[inline(always)]
            |at, [x]: [&[f32]; 1], out: &mut [f32]| mask.drop_from(at, x, out),
        )
    }
}

impl DropoutOps for burn::backend::Flex {
    fn own_dropout(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        Self::dropped(x, &mask)
    }
}

#[derive(Debug)]
struct Drop;

impl<B: Dropping> Backward<B, 1> for Drop {
    type State = Arc<DropMask>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::dropped(grad, &ops.state));
    }
}

impl<B: Dropping, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn own_dropout(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        match Drop.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let y = B::dropped(x.into_primitive(), &mask);
                prep.finish(mask, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::dropped(x.into_primitive(), &mask)),
        }
    }
}
