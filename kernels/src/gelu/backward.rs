//! The gradient, which keeps only the input. On the CPU, what reads the value for its own gradient keeps nothing more.

use std::fmt;
use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;

use super::ops::{Gelu, GeluOps};
use crate::again::is_cheap;

#[derive(Debug)]
struct Slope;

impl<B: GeluOps> Backward<B, 1> for Slope {
    type State = (NodeId, Gelu);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (input, form) = ops.state;
        let x = checkpointer.retrieve_node_output(input);
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::gelu_gradient(x, grad, form));
    }
}

/// Computes the values again if they are not kept.
struct Again<B> {
    input: NodeId,
    form: Gelu,
    backend: PhantomData<B>,
}

impl<B> fmt::Debug for Again<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Again({:?} of {:?})", self.form, self.input)
    }
}

impl<B: GeluOps> RetroForward for Again<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let x: FloatTensor<B> = states.get_state(&self.input);
        states.save(out_node, B::gelu_value(x, self.form));
    }
}

impl<B: GeluOps, C: CheckpointStrategy> GeluOps for Autodiff<B, C> {
    fn gelu_value(x: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        match is_cheap::<B>() {
            true => value::<B, BalancedCheckpointing>(x, form),
            false => value::<B, C>(x, form),
        }
    }
}

fn value<B: GeluOps, C: CheckpointStrategy>(
    x: FloatTensor<Autodiff<B, C>>,
    form: Gelu,
) -> FloatTensor<Autodiff<B, C>> {
    let again = Again::<B> { input: x.node().id(), form, backend: PhantomData };
    let prepared = Slope.prepare::<C>([x.node()]).memory_bound().retro_forward(again).parents([&x]);
    match prepared.stateful() {
        OpsKind::Tracked(mut prep) => {
            let kept = prep.checkpoint(&x);
            prep.finish((kept, form), B::gelu_value(x.into_primitive(), form))
        }
        OpsKind::UnTracked(prep) => prep.finish(B::gelu_value(x.into_primitive(), form)),
    }
}
