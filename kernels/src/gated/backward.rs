//! The gradients, which keep the two projections only.

use std::fmt;
use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;

use super::ops::{Gate, GatedOps, Gates};
use crate::again::is_cheap;

#[derive(Debug)]
struct Gated;

impl<B: Gates> Backward<B, 2> for Gated {
    type State = (NodeId, NodeId, Gate);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (gate, up, form) = ops.state;
        let [gate, up] = [gate, up].map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
        let found = B::gradients(gate, up, grads.consume::<B>(&ops.node), form);
        for (node, found) in ops.parents.into_iter().zip(found) {
            if let Some(node) = node {
                grads.register::<B>(node.id, found);
            }
        }
    }
}

/// Computes the values again if they are not kept.
struct Again<B> {
    inputs: [NodeId; 2],
    form: Gate,
    backend: PhantomData<B>,
}

impl<B> fmt::Debug for Again<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Again({:?} of {:?})", self.form, self.inputs)
    }
}

impl<B: Gates> RetroForward for Again<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let [gate, up] = self.inputs.map(|node| states.get_state::<FloatTensor<B>>(&node));
        states.save(out_node, B::value(gate, up, self.form));
    }
}

impl<B: Gates, C: CheckpointStrategy> GatedOps for Autodiff<B, C> {
    fn own_gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        match is_cheap::<B>() {
            true => gated::<B, BalancedCheckpointing>(gate, up, form),
            false => gated::<B, C>(gate, up, form),
        }
    }
}

fn gated<B: Gates, C: CheckpointStrategy>(
    gate: FloatTensor<Autodiff<B, C>>,
    up: FloatTensor<Autodiff<B, C>>,
    form: Gate,
) -> FloatTensor<Autodiff<B, C>> {
    let again = Again::<B> { inputs: [gate.node().id(), up.node().id()], form, backend: PhantomData };
    let prepared = Gated.prepare::<C>([gate.node(), up.node()]).memory_bound();
    match prepared.retro_forward(again).parents([&gate, &up]).stateful() {
        OpsKind::Tracked(mut prep) => {
            let kept = (prep.checkpoint(&gate), prep.checkpoint(&up), form);
            prep.finish(kept, B::value(gate.into_primitive(), up.into_primitive(), form))
        }
        OpsKind::UnTracked(prep) => prep.finish(B::value(gate.into_primitive(), up.into_primitive(), form)),
    }
}
