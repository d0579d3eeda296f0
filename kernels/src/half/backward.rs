//! The gradient of a cast: a cast back.

use burn::backend::TensorMetadata;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::tensor::FloatDType;

use super::ops::HalfOps;

#[derive(Debug)]
struct Cast;

impl<B: HalfOps> Backward<B, 1> for Cast {
    type State = FloatDType;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::fast_cast(grad, ops.state));
    }
}

impl<B: HalfOps, C: CheckpointStrategy> HalfOps for Autodiff<B, C> {
    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let from = FloatDType::from(x.dtype());
        match Cast.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(from, B::fast_cast(x.into_primitive(), dtype)),
            OpsKind::UnTracked(prep) => prep.finish(B::fast_cast(x.into_primitive(), dtype)),
        }
    }
}
