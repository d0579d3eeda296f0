//! Sums as operations of a backend, with their gradients: the sum's own, and the same dropout of it.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, backend_extension};

use crate::autodiff::differentiable;
use crate::dropout::{DropMask, DropoutOps};

/// Sums of a residual branch and its input. The defaults are Burn's own operations.
///
/// Call [`add`](super::add) and [`add_dropout`](super::add_dropout), which take tensors. On backends outside this
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
