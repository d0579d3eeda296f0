//! The gradients, which keep the two projections only.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;

use super::ops::{Gate, GatedOps, Gates};

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

impl<B: Gates, C: CheckpointStrategy> GatedOps for Autodiff<B, C> {
    fn own_gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        match Gated.prepare::<C>([gate.node(), up.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let kept = (prep.checkpoint(&gate), prep.checkpoint(&up), form);
                prep.finish(kept, B::value(gate.into_primitive(), up.into_primitive(), form))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::value(gate.into_primitive(), up.into_primitive(), form))
            }
        }
    }
}
