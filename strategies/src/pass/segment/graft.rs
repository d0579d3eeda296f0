//! Operations that put our own backward pass into Burn's graph, on every backend.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, backend_extension,
};
use burn::tensor::Tensor;

/// Runs when the backward pass arrives: takes the gradient of the operation's result, and returns the gradient of its
/// input.
#[derive(Clone)]
struct Hook(Arc<dyn Fn(DispatchTensor) -> Option<DispatchTensor> + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// The operations below the tensor API. Without autodiff there is nothing to hook into.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
trait GraftOps: Backend {
    fn graft(parent: FloatTensor<Self>, value: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let _ = (parent, hook);
        value
    }

    fn join(token: FloatTensor<Self>, input: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let _ = (input, hook);
        token
    }

    /// Tells the number of the tensor's node in the graph, if it has one.
    fn tell_node(x: FloatTensor<Self>, number: Arc<AtomicU64>) -> FloatTensor<Self> {
        let _ = number;
        x
    }
}

impl GraftOps for burn::backend::Flex {}
#[cfg(feature = "cube")]
impl GraftOps for burn::backend::Cube {}

impl<B: Backend, C: CheckpointStrategy> GraftOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn graft(parent: FloatTensor<Self>, value: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let value = value.into_primitive();
        match Graft.prepare::<C>([parent.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(hook, value),
            OpsKind::UnTracked(prepared) => prepared.finish(value),
        }
    }

    fn join(token: FloatTensor<Self>, input: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let (token, node) = token.into_parts();
        match Join.prepare::<C>([node, input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(hook, token),
            OpsKind::UnTracked(prepared) => prepared.finish(token),
        }
    }

    fn tell_node(x: FloatTensor<Self>, number: Arc<AtomicU64>) -> FloatTensor<Self> {
        number.store(x.id().value, Relaxed);
        x
    }
}

#[derive(Debug)]
struct Graft;

impl<B: Backend> Backward<B, 1> for Graft
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Hook;

    fn backward(self, ops: Ops<Hook, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = (ops.state.0)(to_dispatch::<B>(grads.consume::<B>(&ops.node)));
        let [parent] = ops.parents;
        if let (Some(parent), Some(grad)) = (parent, grad) {
            grads.register::<B>(parent.id, to_primitive::<B>(grad));
        }
    }
}

#[derive(Debug)]
struct Join;

impl<B: Backend> Backward<B, 2> for Join
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Hook;

    fn backward(self, ops: Ops<Hook, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [token, input] = ops.parents;
        let of_input = (ops.state.0)(to_dispatch::<B>(grad.clone()));
        if let Some(token) = token {
            grads.register::<B>(token.id, grad);
        }
        if let (Some(input), Some(grad)) = (input, of_input) {
            grads.register::<B>(input.id, to_primitive::<B>(grad));
        }
    }
}

fn to_dispatch<B: Backend>(grad: FloatTensor<B>) -> DispatchTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    DispatchTensor::from_backend(BackendTensor::Float(grad))
}

fn to_primitive<B: Backend>(grad: DispatchTensor) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let grad: BackendTensor<B> =
        DispatchTensor::try_into_backend(grad).expect("a gradient is on the backend of its tensor");
    grad.float()
}

/// Returns `value` as if it were computed from `parent`: in the backward pass, `grad` turns the gradient of `value`
/// into the gradient of `parent`.
pub(in crate::pass) fn graft<const P: usize, const V: usize>(
    parent: Tensor<P>,
    value: Tensor<V>,
    grad: impl Fn(Tensor<V>) -> Tensor<P> + Send + Sync + 'static,
) -> Tensor<V> {
    let hook = move |of_value| Some(grad(Tensor::from_dispatch(of_value)).into_dispatch());
    let hook = Hook(Arc::new(hook));
    Tensor::from_dispatch(Dispatch::graft(parent.into_dispatch(), value.into_dispatch(), hook))
}

/// Returns `token` as if it were computed from `input` too. In the backward pass, `grad` turns the gradient of the token into that
/// of `input`, and the token itself keeps its gradient. The forward pass computes nothing.
pub(in crate::pass) fn join<const T: usize, const D: usize>(
    token: Tensor<T>,
    input: Tensor<D>,
    grad: impl Fn(Tensor<T>) -> Option<Tensor<D>> + Send + Sync + 'static,
) -> Tensor<T> {
    let hook = move |of_token| grad(Tensor::from_dispatch(of_token)).map(Tensor::into_dispatch);
    let hook = Hook(Arc::new(hook));
    Tensor::from_dispatch(Dispatch::join(token.into_dispatch(), input.into_dispatch(), hook))
}

/// Returns the number of a tensor's node in the graph: `None` outside autodiff.
pub(in crate::pass) fn node_of<const D: usize>(x: &Tensor<D>) -> Option<u64> {
    let number = Arc::new(AtomicU64::new(u64::MAX));
    let _ = Dispatch::tell_node(x.clone().into_dispatch(), number.clone());
    Some(number.load(Relaxed)).filter(|number| *number != u64::MAX)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::testing;

    #[test]
    fn a_graft_replaces_the_derivative() {
        let device = testing::device().autodiff();
        let x = Tensor::<1>::from_data([1.0, 2.0], &device).require_grad();
        let value = Tensor::<2>::from_data([[5.0], [7.0]], &device);
        let y = graft(x.clone() * 2.0, value, |grad| grad.reshape([2]) * 10.0);
        let grads = (y * 3.0).sum().backward();
        assert_eq!(x.grad(&grads).unwrap().into_data().try_to_vec::<f32>().unwrap(), [60.0; 2]);
    }

    #[test]
    fn a_join_adds_an_input_without_computing() {
        let device = testing::device().autodiff();
        let leaf = || Tensor::<1>::from_data([1.0], &device).require_grad();
        let (token, input) = (leaf(), leaf());
        let joined =
            join(token.clone(), input.clone(), |_| Some(Tensor::from_data([4.0], &testing::device())));
        let grads = (joined * 3.0).backward();
        let read = |leaf: &Tensor<1>| leaf.grad(&grads).unwrap().into_scalar::<f32>();
        assert_eq!((read(&token), read(&input)), (3.0, 4.0));
    }
}
