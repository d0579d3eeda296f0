//! The gradient of a map in 8 bits, and of rounding.

use burn::backend::TensorMetadata;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;

use super::Fp8;
use super::ops::{Fp8Ops, Fp8Products, in_fp8};
use crate::product::{of_rows, rows, value};

#[derive(Debug)]
struct Rounded;

impl<B: Fp8Products> Backward<B, 1> for Rounded {
    type State = ();

    /// Rounding is taken for the identity.
    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| grad);
    }
}

/// The map, of the input, the weight, and the bias if it has one.
#[derive(Debug)]
struct Map;

impl<B: Fp8Products, const N: usize> Backward<B, N> for Map {
    /// The checkpointer's nodes of the input and the weight, or `None` where no gradient reads it.
    type State = [Option<NodeId>; 2];

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x, weight] =
            ops.state.map(|kept| kept.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id)));
        let grad = grads.consume::<B>(&ops.node);
        let mut shape = grad.shape();
        let (x, grad) = (x.map(rows::<B>), rows::<B>(grad));
        if let Some(bias) = ops.parents.get(2).and_then(Option::as_ref) {
            grads.register::<B>(bias.id, B::column_sums(grad.clone()));
        }
        if let Some(weight) = &weight {
            let last = shape.num_dims() - 1;
            shape[last] = weight.shape()[0];
        }
        let [of_x, of_weight] = B::fp8_gradients(x, weight, grad);
        let of_operands = [of_x.map(|of_x| B::float_reshape(of_x, shape)), of_weight];
        for (parent, found) in ops.parents.iter().zip(of_operands) {
            if let (Some(parent), Some(found)) = (parent, found) {
                grads.register::<B>(parent.id, found);
            }
        }
    }
}

/// Computes the map of an input, a weight, and a bias if there are three.
fn mapped<B: Fp8Products, C: CheckpointStrategy, const N: usize>(
    operands: [FloatTensor<Autodiff<B, C>>; N],
) -> FloatTensor<Autodiff<B, C>> {
    let compute = |operands: [FloatTensor<Autodiff<B, C>>; N]| {
        let mut operands = operands.into_iter().map(|operand| operand.into_primitive());
        let mut next = || operands.next().expect("a map has an input and a weight");
        let (x, weight) = (next(), next());
        let bias = operands.next();
        value::<B>(x, weight, |x, weight| of_rows::<B>(x, |rows| B::fp8_map(rows, weight, bias)))
    };
    let nodes = operands.each_ref().map(|operand| operand.node());
    match Map.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let [x, weight] = [0, 1].map(|at| &operands[at]);
            let kept_x = weight.is_tracked().then(|| prep.checkpoint(x));
            let kept_weight = x.is_tracked().then(|| prep.checkpoint(weight));
            let y = compute(operands);
            prep.finish([kept_x, kept_weight], y)
        }
        OpsKind::UnTracked(prep) => prep.finish(compute(operands)),
    }
}

impl<B: Fp8Products, C: CheckpointStrategy> Fp8Ops for Autodiff<B, C> {
    fn round_to_fp8(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self> {
        match Rounded.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((), in_fp8::<B>(x.into_primitive(), format)),
            OpsKind::UnTracked(prep) => prep.finish(in_fp8::<B>(x.into_primitive(), format)),
        }
    }

    fn fp8_product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        mapped::<B, C, 2>([x, weight])
    }

    fn fp8_affine(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        mapped::<B, C, 3>([x, weight, bias])
    }
}
