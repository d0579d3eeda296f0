//! Gradients of an operation with two results.
//!
//! A node of Burn's graph has one result and one gradient. An operation with two is a node whose step takes the
//! gradients that its two children, one for each result, leave in a [`Junction`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Backend;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, ComputePropertyDone, Ops, OpsKind, OpsPrep};
use burn::backend::tensor::FloatTensor;

/// Where the children of a node leave their gradients.
pub(super) struct Junction<B: Backend>(Arc<Mutex<[Option<FloatTensor<B>>; 2]>>);

impl<B: Backend> Junction<B> {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new([None, None])))
    }

    /// Takes the gradients of the results; `None` for a result that was not used.
    pub fn take(&self) -> [Option<FloatTensor<B>>; 2] {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn leave(&self, result: usize, grad: FloatTensor<B>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[result] = Some(grad);
    }
}

impl<B: Backend> Clone for Junction<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> fmt::Debug for Junction<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Junction")
    }
}

/// Creates result `number` of the operation of `node`.
pub(super) fn branch<B: Backend, C: CheckpointStrategy>(
    node: &FloatTensor<Autodiff<B, C>>,
    junction: &Junction<B>,
    number: usize,
    value: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    finished(Branch.prepare::<C>([node.node()]).compute_bound(), junction, number, value)
}

/// Like [`branch`], for a result that `again` computes from the value of `node`, if it is not kept.
pub(super) fn branch_again<B: Backend, C: CheckpointStrategy>(
    node: &FloatTensor<Autodiff<B, C>>,
    junction: &Junction<B>,
    number: usize,
    value: FloatTensor<B>,
    again: impl RetroForward,
) -> FloatTensor<Autodiff<B, C>> {
    let prepared = Branch.prepare::<C>([node.node()]).memory_bound();
    finished(prepared.retro_forward(again).parents([node]), junction, number, value)
}

type Prepared<B, C> = OpsPrep<Branch, B, (Junction<B>, usize), C, 1, ComputePropertyDone>;

fn finished<B: Backend, C: CheckpointStrategy>(
    prepared: Prepared<B, C>,
    junction: &Junction<B>,
    number: usize,
    value: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    match prepared.stateful() {
        OpsKind::Tracked(prep) => prep.finish((junction.clone(), number), value),
        OpsKind::UnTracked(prep) => prep.finish(value),
    }
}

#[derive(Debug)]
struct Branch;

impl<B: Backend> Backward<B, 1> for Branch {
    type State = (Junction<B>, usize);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (junction, number) = ops.state;
        junction.leave(number, grads.consume::<B>(&ops.node));
    }
}
