//! Gradients of sums.

use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

use super::ops::{ResidualOps, Sums};
use crate::dropout::DropMask;

#[derive(Debug)]
struct Sum;

impl<B: Sums> Backward<B, 2> for Sum {
    /// The mask of the second summand's dropout.
    type State = Option<Arc<DropMask>>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [to_x, to_y] = ops.parents;
        if let Some(node) = to_y {
            let found = match &ops.state {
                None => grad.clone(),
                Some(mask) => B::dropped(grad.clone(), mask),
            };
            grads.register::<B>(node.id, found);
        }
        if let Some(node) = to_x {
            grads.register::<B>(node.id, grad);
        }
    }
}

impl<B: Sums, C: CheckpointStrategy> ResidualOps for Autodiff<B, C> {
    fn own_sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
        match Sum.prepare::<C>([x.node(), y.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(None, B::sum(x.into_primitive(), y.into_primitive())),
            OpsKind::UnTracked(prep) => prep.finish(B::sum(x.into_primitive(), y.into_primitive())),
        }
    }

    fn own_sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        let prepared = Sum.prepare::<C>([x.node(), y.node()]).compute_bound().stateful();
        let sum = B::sum_with_dropped(x.into_primitive(), y.into_primitive(), mask.clone());
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(Some(mask), sum),
            OpsKind::UnTracked(prep) => prep.finish(sum),
        }
    }
}
