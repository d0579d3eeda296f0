//! Attention as operations of a backend, with its gradient, which keeps the inputs, the output and one number per query.

use std::array::from_fn;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, backend_extension};

use super::drops::Drops;
use super::reads::Reads;
use crate::autodiff::differentiable_with_inputs;

/// What an attention computes, apart from its tensors.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) reads: Reads,
    /// The factor of the products of queries and keys.
    pub(super) scale: f64,
    /// The bound of the scores.
    pub(super) cap: Option<f64>,
    pub(super) drops: Option<Arc<Drops>>,
    /// Whether queries read other keys too: see [`AttentionInParts`](super::AttentionInParts).
    #[cfg(feature = "cube")]
    pub(super) is_part: bool,
    /// The [bounds](Reads::bounds) of the reads on the inputs' device, if a kernel needs them.
    #[cfg(feature = "cube")]
    pub(super) bounds: Option<burn::tensor::Tensor<1, burn::tensor::Int>>,
    /// The [words](Drops::on_device) of the drops on the inputs' device.
    #[cfg(feature = "cube")]
    pub(super) drop_keys: Option<burn::tensor::Tensor<1, burn::tensor::Int>>,
}

/// Attention whose backward pass computes the scores again. Call [`attention`](crate::attention()) and
/// [`attention_of_joint`](crate::attention_of_joint), which take tensors.
///
/// `query` is `[batch, heads, length, size]`, `key` and `value` `[batch, key_heads, read, size]`, in f32, bf16 or f16;
/// `bias` is `[1 or batch, heads, length, read]` in f32. No axis has the length 0.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait AttentionOps: Backend {
    /// Returns the output, `[batch, heads, length, size]`.
    fn attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        plan: Plan,
    ) -> FloatTensor<Self>;

    /// Returns the output of scores with a bias.
    fn attention_biased(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        plan: Plan,
    ) -> FloatTensor<Self>;

    /// Returns the output of queries, keys and values that are the thirds of `joint`, `[batch, length, 3 * width]`.
    fn attention_of_joint(joint: FloatTensor<Self>, heads: usize, plan: Plan) -> FloatTensor<Self>;
}

/// The inputs of an attention.
#[derive(Clone, Debug)]
pub enum Source<T> {
    Apart { query: T, key: T, value: T, bias: Option<T> },
    Joint { joint: T, heads: usize },
}

/// The gradients of the inputs: of query, key, value and bias, or of a joint projection alone.
pub type Gradients<T> = [Option<T>; 4];

/// A backend's tiles, forward and backward.
pub trait Tiled: Backend {
    /// The natural logarithm of the base of the logarithms.
    const LN_BASE: f64;

    /// The queries of a row and head have places for a multiple of so many logarithms.
    const LINE: usize;

    /// Returns the output and the logarithms of the sums of the scores' powers.
    fn tiled(source: Source<FloatTensor<Self>>, plan: &Plan) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the wanted gradients, given what [`tiled`](Self::tiled) returned and the gradient of the output. Those of a part of
    /// the keys are given the output and the logarithms of all keys.
    fn tiled_gradients(
        source: Source<FloatTensor<Self>>,
        plan: &Plan,
        kept: [FloatTensor<Self>; 2],
        grad: FloatTensor<Self>,
        wanted: [bool; 4],
    ) -> Gradients<FloatTensor<Self>>;
}

impl<B: Tiled> AttentionOps for B {
    fn attention(
        query: FloatTensor<B>,
        key: FloatTensor<B>,
        value: FloatTensor<B>,
        plan: Plan,
    ) -> FloatTensor<B> {
        B::tiled(Source::Apart { query, key, value, bias: None }, &plan).0
    }

    fn attention_biased(
        query: FloatTensor<B>,
        key: FloatTensor<B>,
        value: FloatTensor<B>,
        bias: FloatTensor<B>,
        plan: Plan,
    ) -> FloatTensor<B> {
        B::tiled(Source::Apart { query, key, value, bias: Some(bias) }, &plan).0
    }

    fn attention_of_joint(joint: FloatTensor<B>, heads: usize, plan: Plan) -> FloatTensor<B> {
        B::tiled(Source::Joint { joint, heads }, &plan).0
    }
}

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
