//! Gradients of products.
//!
//! For `y = l · r` and the gradient `g` of `y`: `g · rᵀ` and `lᵀ · g`, summed over broadcast axes. A bias's gradient is
//! the sum of `g` over its rows. Transposes are views, and each gradient is rounded once, after its sums.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, broadcast_shape};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape};

use super::unread::value;
use super::{ProductOps, of_rows, rows};

/// The checkpointer's node of an operand, or `None` if no gradient reads it.
type Kept = Option<NodeId>;

fn fetch<B: Backend>(kept: Kept, checkpointer: &mut Checkpointer) -> Option<FloatTensor<B>> {
    kept.map(|id| checkpointer.retrieve_node_output(id))
}

#[derive(Debug)]
struct Matmul;

impl<B: ProductOps> Backward<B, 2> for Matmul {
    type State = (Kept, Kept, [Shape; 2]);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (lhs, rhs, [lhs_shape, rhs_shape]) = ops.state;
        let (lhs, rhs) = (fetch::<B>(lhs, checkpointer), fetch::<B>(rhs, checkpointer));
        let [to_lhs, to_rhs] = ops.parents;
        let grad = grads.consume::<B>(&ops.node);
        if let (Some(node), Some(rhs)) = (to_lhs, rhs) {
            let found = to_shape::<B>(grad.clone(), B::float_transpose(rhs), &lhs_shape);
            grads.register::<B>(node.id, found);
        }
        if let (Some(node), Some(lhs)) = (to_rhs, lhs) {
            grads.register::<B>(node.id, of_rhs::<B>(lhs, grad, rhs_shape));
        }
    }
}

/// Returns `lᵀ · g` summed over broadcast axes. If all matrices were multiplied by one, the sum is part of one product
/// of all rows.
fn of_rhs<B: ProductOps>(lhs: FloatTensor<B>, grad: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    let (of_lhs, of_grad, axes) = (lhs.shape(), grad.shape(), shape.num_dims() - 2);
    let one = (0..axes).all(|axis| shape[axis] == 1 && of_lhs[axis] == of_grad[axis]);
    if axes == 0 || !one || of_grad.num_elements() == 0 || of_lhs.num_elements() == 0 {
        return to_shape::<B>(B::float_transpose(lhs), grad, &shape);
    }
    let found = B::product(B::float_transpose(rows::<B>(lhs)), rows::<B>(grad));
    B::float_reshape(found, shape)
}

/// Multiplies and sums over the axes that were broadcast from `shape`, in f32 if there are any.
fn to_shape<B: ProductOps>(lhs: FloatTensor<B>, rhs: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    let (dtype, axes) = (lhs.dtype(), shape.num_dims() - 2);
    let (left, right) = (lhs.shape(), rhs.shape());
    let summed = (0..axes).any(|axis| shape[axis] < left[axis].max(right[axis]));
    if !summed || !matches!(dtype, DType::BF16 | DType::F16) {
        return broadcast_shape::<B>(B::product(lhs, rhs), shape);
    }
    let wide = |x| B::fast_cast(x, FloatDType::F32);
    let found = broadcast_shape::<B>(B::product(wide(lhs), wide(rhs)), shape);
    B::fast_cast(found, dtype.into())
}

#[derive(Debug)]
struct Affine;

impl<B: ProductOps> Backward<B, 3> for Affine {
    type State = (Kept, Kept);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (x, weight) = ops.state;
        let (x, weight) = (fetch::<B>(x, checkpointer), fetch::<B>(weight, checkpointer));
        let [to_x, to_weight, to_bias] = ops.parents;
        let grad = grads.consume::<B>(&ops.node);
        if let (Some(node), Some(weight)) = (to_x, weight) {
            let found = of_rows::<B>(grad.clone(), |grad| B::product(grad, B::float_transpose(weight)));
            grads.register::<B>(node.id, found);
        }
        let grad = rows::<B>(grad);
        match (to_weight.zip(x), to_bias) {
            (Some((weight, x)), Some(bias)) => {
                let (of_weight, of_bias) = B::affine_gradients(rows::<B>(x), grad);
                grads.register::<B>(weight.id, of_weight);
                grads.register::<B>(bias.id, of_bias);
            }
            (Some((weight, x)), None) => {
                grads.register::<B>(weight.id, B::product(B::float_transpose(rows::<B>(x)), grad));
            }
            (None, Some(bias)) => grads.register::<B>(bias.id, B::column_sums(grad)),
            (None, None) => {}
        }
    }
}

impl<B: ProductOps, C: CheckpointStrategy> ProductOps for Autodiff<B, C> {
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let shapes = [lhs.shape(), rhs.shape()];
        let product =
            |lhs: FloatTensor<B>, rhs: FloatTensor<B>| value::<B>(lhs, rhs, |lhs, rhs| B::product(lhs, rhs));
        match Matmul.prepare::<C>([lhs.node(), rhs.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let kept_lhs = rhs.is_tracked().then(|| prep.checkpoint(&lhs));
                let kept_rhs = lhs.is_tracked().then(|| prep.checkpoint(&rhs));
                let product = product(lhs.into_primitive(), rhs.into_primitive());
                prep.finish((kept_lhs, kept_rhs, shapes), product)
            }
            OpsKind::UnTracked(prep) => prep.finish(product(lhs.into_primitive(), rhs.into_primitive())),
        }
    }

    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let affine = |x: FloatTensor<B>, weight: FloatTensor<B>, bias: FloatTensor<B>| {
            value::<B>(x, weight, |x, weight| B::affine(x, weight, bias))
        };
        match Affine.prepare::<C>([x.node(), weight.node(), bias.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let kept_x = weight.is_tracked().then(|| prep.checkpoint(&x));
                let kept_weight = x.is_tracked().then(|| prep.checkpoint(&weight));
                let y = affine(x.into_primitive(), weight.into_primitive(), bias.into_primitive());
                prep.finish((kept_x, kept_weight), y)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(affine(x.into_primitive(), weight.into_primitive(), bias.into_primitive()))
            }
        }
    }
}
