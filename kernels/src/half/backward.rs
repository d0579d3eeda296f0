//! Gradients of products in half precision.
//!
//! For `y = l · r` and the gradient `g` of `y`: `g · rᵀ` and `lᵀ · g`, summed over broadcast axes. `g` is widened once
//! for both, the operands are kept in their own dtype, and each gradient is rounded once, after its sums.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, broadcast_shape, unary};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Shape};

use super::ops::{Convert, HalfOps, affine, matmul, narrow, wide, widens};

/// The checkpointer's node of an operand, or `None` if no gradient reads it.
type Kept = Option<NodeId>;

fn fetch<B: Backend>(kept: Kept, checkpointer: &mut Checkpointer) -> Option<FloatTensor<B>> {
    kept.map(|id| checkpointer.retrieve_node_output(id))
}

#[derive(Debug)]
struct Matmul;

impl<B: Convert> Backward<B, 2> for Matmul {
    type State = (Kept, Kept, [Shape; 2]);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (lhs, rhs, [lhs_shape, rhs_shape]) = ops.state;
        let (lhs, rhs) = (fetch::<B>(lhs, checkpointer), fetch::<B>(rhs, checkpointer));
        let [to_lhs, to_rhs] = ops.parents;
        let grad = grads.consume::<B>(&ops.node);
        let dtype = grad.dtype();
        let grad = wide::<B>(grad);
        if let (Some(node), Some(rhs)) = (to_lhs, rhs) {
            let found = B::float_matmul(grad.clone(), B::float_transpose(wide::<B>(rhs)));
            let found = broadcast_shape::<B>(found, &lhs_shape);
            grads.register::<B>(node.id, narrow::<B>(found, dtype));
        }
        if let (Some(node), Some(lhs)) = (to_rhs, lhs) {
            let found = B::float_matmul(B::float_transpose(wide::<B>(lhs)), grad);
            let found = broadcast_shape::<B>(found, &rhs_shape);
            grads.register::<B>(node.id, narrow::<B>(found, dtype));
        }
    }
}

#[derive(Debug)]
struct Affine;

impl<B: Convert> Backward<B, 3> for Affine {
    type State = (Kept, Kept);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (x, weight) = ops.state;
        let (x, weight) = (fetch::<B>(x, checkpointer), fetch::<B>(weight, checkpointer));
        let [to_x, to_weight, to_bias] = ops.parents;
        let grad = grads.consume::<B>(&ops.node);
        let dtype = grad.dtype();
        let grad = wide::<B>(grad);
        if let (Some(node), Some(weight)) = (to_x, weight) {
            let found = B::float_matmul(grad.clone(), B::float_transpose(wide::<B>(weight)));
            grads.register::<B>(node.id, narrow::<B>(found, dtype));
        }
        if let (Some(node), Some(x)) = (to_weight, x) {
            let found = B::float_matmul(B::float_transpose(wide::<B>(x)), grad.clone());
            grads.register::<B>(node.id, narrow::<B>(found, dtype));
        }
        if let Some(node) = to_bias {
            grads.register::<B>(node.id, narrow::<B>(B::linear_bias_backward(grad), dtype));
        }
    }
}

#[derive(Debug)]
struct Cast;

impl<B: Convert> Backward<B, 1> for Cast {
    type State = FloatDType;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::convert(grad, ops.state));
    }
}

impl<B: Convert, C: CheckpointStrategy> HalfOps for Autodiff<B, C> {
    fn half_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        if !widens::<B>(lhs.dtype()) {
            return Self::float_matmul(lhs, rhs);
        }
        let shapes = [lhs.shape(), rhs.shape()];
        match Matmul.prepare::<C>([lhs.node(), rhs.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let kept_lhs = rhs.is_tracked().then(|| prep.checkpoint(&lhs));
                let kept_rhs = lhs.is_tracked().then(|| prep.checkpoint(&rhs));
                let product = matmul::<B>(lhs.into_primitive(), rhs.into_primitive());
                prep.finish((kept_lhs, kept_rhs, shapes), product)
            }
            OpsKind::UnTracked(prep) => prep.finish(matmul::<B>(lhs.into_primitive(), rhs.into_primitive())),
        }
    }

    fn half_affine(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        if !widens::<B>(x.dtype()) {
            return Self::linear(x, weight, Some(bias));
        }
        match Affine.prepare::<C>([x.node(), weight.node(), bias.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let kept_x = weight.is_tracked().then(|| prep.checkpoint(&x));
                let kept_weight = x.is_tracked().then(|| prep.checkpoint(&weight));
                let y = affine::<B>(x.into_primitive(), weight.into_primitive(), bias.into_primitive());
                prep.finish((kept_x, kept_weight), y)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(affine::<B>(x.into_primitive(), weight.into_primitive(), bias.into_primitive()))
            }
        }
    }

    fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let from = FloatDType::from(x.dtype());
        match Cast.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(from, B::convert(x.into_primitive(), dtype)),
            OpsKind::UnTracked(prep) => prep.finish(B::convert(x.into_primitive(), dtype)),
        }
    }
}
