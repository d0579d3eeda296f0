//! The gradient, which keeps the inputs, the output and one number per query.

use std::array::from_fn;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;

use super::ops::{AttentionOps, Plan, Source, Tiled};
use crate::autodiff::differentiable_with_inputs;

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

/// Computes the output, and registers its gradient.
fn registered<B: Tiled, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    form: Form,
    plan: Plan,
) -> FloatTensor<Autodiff<B, C>> {
    differentiable_with_inputs::<B, C, _, N>(
        inputs,
        [true; N],
        |inputs| {
            let (output, logs) = B::tiled(form.of(inputs), &plan);
            (output.clone(), (form, plan, [output, logs]))
        },
        |inputs, (form, plan, kept), grad, wanted| {
            let source = form.of(inputs.map(|input| input.expect("all inputs are kept")));
            let wanted = from_fn(|at| wanted.get(at).is_some_and(|wanted| *wanted));
            let mut found = B::tiled_gradients(source, &plan, kept, grad, wanted).into_iter();
            from_fn(|_| found.next().flatten())
        },
    )
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
