//! The gradient, which is the inverse rotation.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;

use super::ops::{RotaryOps, RotaryRows};

#[derive(Debug)]
struct Rotation;

impl<B: RotaryRows> Backward<B, 1> for Rotation {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (cos, sin) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::rotated(grad, cos, sin, true));
    }
}

impl<B: RotaryRows, C: CheckpointStrategy> RotaryOps for Autodiff<B, C> {
    fn rotate(x: FloatTensor<Self>, cos: FloatTensor<Self>, sin: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Rotation.prepare::<C>([x.node()]).compute_bound();
        let [x, cos, sin] = [x, cos, sin].map(<FloatTensor<Self>>::into_primitive);
        match prepared.stateful() {
            OpsKind::Tracked(prep) => prep.finish((cos.clone(), sin.clone()), B::rotated(x, cos, sin, false)),
            OpsKind::UnTracked(prep) => prep.finish(B::rotated(x, cos, sin, false)),
        }
    }
}
