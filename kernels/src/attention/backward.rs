//! The gradient, which keeps the inputs, the output and one number per query.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

use super::ops::{AttentionOps, Plan, Source, Tiled};

/// The gradients of `N` inputs.
#[derive(Debug)]
struct Slopes<const N: usize>;

/// How the inputs of an operation form a source.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Query, key, value, and a bias if there is a fourth input.
    Apart,
    /// A joint projection of this many heads.
    Joint(usize),
}

impl Form {
    fn of<T, const N: usize>(self, inputs: [T; N]) -> Source<T> {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("a form has as many inputs as its operation");
        match self {
            Self::Joint(heads) => Source::Joint { joint: next(), heads },
            Self::Apart => {
                let (query, key, value) = (next(), next(), next());
                Source::Apart { query, key, value, bias: inputs.next() }
            }
        }
    }
}

impl<B: Tiled, const N: usize> Backward<B, N> for Slopes<N> {
    type State = (Form, [NodeId; N], Plan, [FloatTensor<B>; 2]);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (form, inputs, plan, kept) = ops.state;
        let source = form.of(inputs.map(|id| checkpointer.retrieve_node_output(id)));
        let wanted = std::array::from_fn(|at| ops.parents.get(at).is_some_and(Option::is_some));
        let grad = grads.consume::<B>(&ops.node);
        let found = B::tiled_gradients(source, &plan, kept, grad, wanted);
        for (parent, found) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(found)) = (parent, found) {
                grads.register::<B>(parent.id, found);
            }
        }
    }
}

/// Computes the output, and registers its gradient.
fn registered<B: Tiled, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    form: Form,
    plan: Plan,
) -> FloatTensor<Autodiff<B, C>> {
    match Slopes::<N>.prepare::<C>(inputs.each_ref().map(|input| input.node())).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let nodes = inputs.each_ref().map(|input| prep.checkpoint(input));
            let (output, logs) = B::tiled(form.of(inputs.map(|input| input.into_primitive())), &plan);
            prep.finish((form, nodes, plan, [output.clone(), logs]), output)
        }
        OpsKind::UnTracked(prep) => {
            prep.finish(B::tiled(form.of(inputs.map(|input| input.into_primitive())), &plan).0)
        }
    }
}

impl<B: Tiled, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        plan: Plan,
    ) -> FloatTensor<Self> {
        registered::<B, C, _>([query, key, value], Form::Apart, plan)
    }

    fn attention_biased(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        plan: Plan,
    ) -> FloatTensor<Self> {
        registered::<B, C, _>([query, key, value, bias], Form::Apart, plan)
    }

    fn attention_of_joint(joint: FloatTensor<Self>, heads: usize, plan: Plan) -> FloatTensor<Self> {
        registered::<B, C, _>([joint], Form::Joint(heads), plan)
    }
}
