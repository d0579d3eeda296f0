//! Operations with gradients of their own on Burn's autodiff backend.
//!
//! The value of an operation and its gradients stand side by side, as two functions:
//!
//! ```ignore
//! impl<B: HalfOps, C: CheckpointStrategy> HalfOps for Autodiff<B, C> {
//!     fn fast_cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
//!         let from = FloatDType::from(x.dtype());
//!         differentiable::<B, C, _, _>(
//!             [x],
//!             |[x]| (B::fast_cast(x, dtype), from),         // the value, and what is kept
//!             |from, grad, _| [Some(B::fast_cast(grad, from))], // the gradients of the inputs
//!         )
//!     }
//! }
//! ```

use std::any::TypeId;
use std::fmt::Debug;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, ComputePropertyDone, Ops, OpsKind, OpsPrep};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex};

/// Tensors that belong to the inputs of an operation.
type OfInputs<B, const N: usize> = [Option<FloatTensor<B>>; N];

/// Computes the wanted gradients of the inputs from what was kept and the gradient of the value.
type FromKept<B, S, const N: usize> = fn(kept: S, grad: FloatTensor<B>, wanted: [bool; N]) -> OfInputs<B, N>;

/// Like [`FromKept`], from the inputs too.
type FromInputs<B, S, const N: usize> =
    fn(inputs: OfInputs<B, N>, kept: S, grad: FloatTensor<B>, wanted: [bool; N]) -> OfInputs<B, N>;

/// Computes all gradients of the inputs from them and the gradient of the value.
type FromAll<B, F, const N: usize> =
    fn(inputs: [FloatTensor<B>; N], form: F, grad: FloatTensor<B>) -> [FloatTensor<B>; N];

/// Computes a value of the inputs, and registers its gradients. With the value, `value` returns what `gradients` reads; it
/// is kept for the backward pass if an input is tracked.
pub(crate) fn differentiable<B, C, S, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    value: impl FnOnce([FloatTensor<B>; N]) -> (FloatTensor<B>, S),
    gradients: FromKept<B, S, N>,
) -> FloatTensor<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    S: Clone + Debug + Send + 'static,
{
    let value = |inputs: [FloatTensor<B>; N]| {
        let (value, kept) = value(inputs);
        (value, (kept, gradients))
    };
    let gradients: FromInputs<B, (S, FromKept<B, S, N>), N> =
        |_, (kept, gradients), grad, wanted| gradients(kept, grad, wanted);
    differentiable_with_inputs::<B, C, _, N>(inputs, [false; N], value, gradients)
}

/// Like [`differentiable`], for gradients that read inputs: those that `keeps` names are kept, in the form in which they
/// are, and handed to `gradients`.
pub(crate) fn differentiable_with_inputs<B, C, S, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    keeps: [bool; N],
    value: impl FnOnce([FloatTensor<B>; N]) -> (FloatTensor<B>, S),
    gradients: FromInputs<B, S, N>,
) -> FloatTensor<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    S: Clone + Debug + Send + 'static,
{
    let nodes = inputs.each_ref().map(|input| input.node());
    let prepared = Step(gradients).prepare::<C>(nodes).compute_bound();
    finished::<B, C, S, N>(prepared, inputs, keeps, value)
}

/// Like [`differentiable`], for gradients that read all inputs and nothing else, and a value that Burn may drop and compute
/// again when a gradient reads it.
///
/// It does so for the operations of an autodiff device with that strategy, which is what `Recompute::elementwise` of
/// `firebrick-strategies` selects. On the CPU, activations and norms of this crate [always](is_cheap) are such values.
pub(crate) fn recomputable<B, C, F, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    form: F,
    value: fn([FloatTensor<B>; N], F) -> FloatTensor<B>,
    gradients: FromAll<B, F, N>,
) -> FloatTensor<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    F: Clone + Debug + Send + 'static,
{
    match is_cheap::<B>() {
        true => recomputable_by::<B, BalancedCheckpointing, F, N>(inputs, form, value, gradients),
        false => recomputable_by::<B, C, F, N>(inputs, form, value, gradients),
    }
}

fn recomputable_by<B, C, F, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    form: F,
    value: fn([FloatTensor<B>; N], F) -> FloatTensor<B>,
    gradients: FromAll<B, F, N>,
) -> FloatTensor<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    F: Clone + Debug + Send + 'static,
{
    let again =
        Again::<B, F, N> { inputs: inputs.each_ref().map(|input| input.id()), form: form.clone(), value };
    let nodes = inputs.each_ref().map(|input| input.node());
    let step = Step::<B, (F, FromAll<B, F, N>), N>(|inputs, (form, gradients), grad, _| {
        let inputs = inputs.map(|input| input.expect("all inputs are kept"));
        gradients(inputs, form, grad).map(Some)
    });
    let prepared = step.prepare::<C>(nodes).memory_bound().retro_forward(again).parents(&inputs);
    finished::<B, C, _, N>(prepared, inputs, [true; N], |inputs| {
        (value(inputs, form.clone()), (form, gradients))
    })
}

/// Returns whether a backend computes activations and norms again without being asked.
///
/// On the CPU they are one pass over memory, and a linear layer after them would keep their result, four times as wide as a
/// block's input for an activation. On GPUs, launches and memory traffic cost more beside products.
pub(crate) fn is_cheap<B: Backend>() -> bool {
    TypeId::of::<B>() == TypeId::of::<Flex>()
}

/// Computes a value again if it is not kept.
#[derive(Debug)]
pub(crate) struct Again<B: Backend, F, const N: usize> {
    pub inputs: [NodeId; N],
    pub form: F,
    pub value: fn([FloatTensor<B>; N], F) -> FloatTensor<B>,
}

impl<B: Backend, F: Clone + Debug + Send + 'static, const N: usize> RetroForward for Again<B, F, N> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let inputs = self.inputs.map(|input| states.get_state::<FloatTensor<B>>(&input));
        states.save(out_node, (self.value)(inputs, self.form.clone()));
    }
}

/// The backward pass of one operation.
#[derive(Debug)]
struct Step<B: Backend, S, const N: usize>(FromInputs<B, S, N>);

impl<B: Backend, S: Clone + Debug + Send + 'static, const N: usize> Backward<B, N> for Step<B, S, N> {
    /// The nodes of the inputs that are kept, and what else is.
    type State = ([Option<NodeId>; N], S);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (inputs, kept) = ops.state;
        let inputs = inputs.map(|input| input.map(|node| checkpointer.retrieve_node_output(node)));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let found = (self.0)(inputs, kept, grads.consume::<B>(&ops.node), wanted);
        for (parent, found) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(found)) = (parent, found) {
                grads.register::<B>(parent.id, found);
            }
        }
    }
}

type Prepared<B, C, S, const N: usize> =
    OpsPrep<Step<B, S, N>, B, ([Option<NodeId>; N], S), C, N, ComputePropertyDone>;

fn finished<B, C, S, const N: usize>(
    prepared: Prepared<B, C, S, N>,
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    keeps: [bool; N],
    value: impl FnOnce([FloatTensor<B>; N]) -> (FloatTensor<B>, S),
) -> FloatTensor<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    S: Clone + Debug + Send + 'static,
{
    match prepared.stateful() {
        OpsKind::Tracked(mut prep) => {
            let nodes = std::array::from_fn(|at| keeps[at].then(|| prep.checkpoint(&inputs[at])));
            let (value, kept) = value(inputs.map(|input| input.into_primitive()));
            prep.finish((nodes, kept), value)
        }
        OpsKind::UnTracked(prep) => prep.finish(value(inputs.map(|input| input.into_primitive())).0),
    }
}
