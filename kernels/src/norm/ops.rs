//! The norms as operations of a backend, with their gradient, which keeps the input and two numbers for each row. On the
//! CPU, what reads the normed rows for its own gradient keeps nothing more.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients as Found;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;

use super::branch::{Junction, branch, branch_again};
use super::rows::{Gradients, NormKind, NormRows, Normed, Statistics, Upstream, WantedGradients};
use crate::autodiff::{Again, is_cheap};
use crate::half::to_dtype;

/// What to compute.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The kind of norm.
    pub kind: NormKind,
    /// Whether the second tensor is added to the first.
    pub sums: bool,
    /// Whether the bias is added.
    pub biased: bool,
}

/// Norms over the last axis. Call [`norm`](crate::norm), [`norm_and_input`](crate::norm_and_input) or
/// [`norm_of_sum`](crate::norm_of_sum), which take tensors.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait NormOps: Backend {
    /// Returns the sum of `x` and `y`, or `x`, and its norm. `y` is read if the form sums, and `bias` if it is biased.
    fn norm(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        form: Form,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: NormRows> NormOps for B {
    fn norm(
        x: FloatTensor<B>,
        y: FloatTensor<B>,
        scale: FloatTensor<B>,
        bias: FloatTensor<B>,
        form: Form,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let (y, bias) = (form.sums.then_some(y), form.biased.then_some(bias));
        let Normed { sum, normed, .. } = B::norm_rows(x, y, scale, bias, form.kind);
        (sum, normed)
    }
}

#[derive(Debug)]
struct Norm;

impl<B: NormRows> Backward<B, 4> for Norm {
    type State = (FloatTensor<B>, Statistics<B>, FloatTensor<B>, DType, Junction<B>);

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Found, _: &mut Checkpointer) {
        let (sum, statistics, scale, bias_dtype, junction) = ops.state;
        let [to_x, to_y, to_scale, to_bias] = ops.parents;
        let scale_dtype = scale.dtype();
        let wanted = WantedGradients {
            sum: to_x.is_some() || to_y.is_some(),
            scale: to_scale.is_some(),
            bias: to_bias.is_some(),
        };
        let (of_sum, of_scale, of_bias) = match junction.take() {
            [of_sum, Some(grad)] => {
                let upstream = Upstream { sum, statistics, scale, grad, of_sum };
                let Gradients { sum, scale, bias } = B::norm_gradients(upstream, wanted);
                (sum, scale, bias)
            }
            [of_sum, None] => (of_sum.filter(|_| wanted.sum), None, None),
        };
        if let Some(grad) = of_sum {
            if let Some(node) = to_y {
                grads.register::<B>(node.id, grad.clone());
            }
            if let Some(node) = to_x {
                grads.register::<B>(node.id, grad);
            }
        }
        for (node, grad, dtype) in [(to_scale, of_scale, scale_dtype), (to_bias, of_bias, bias_dtype)] {
            if let (Some(node), Some(grad)) = (node, grad) {
                grads.register::<B>(node.id, to_dtype::<B>(grad, dtype));
            }
        }
    }
}

impl<B: NormRows, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn norm(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        form: Form,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        // A tensor that is not read is no parent: it would be given a gradient.
        let constant = |tensor: FloatTensor<Self>| <FloatTensor<Self>>::new(tensor.into_primitive());
        let y = if form.sums { y } else { constant(y) };
        let bias = if form.biased { bias } else { constant(bias) };
        let prepared = Norm.prepare::<C>([x.node(), y.node(), scale.node(), bias.node()]).compute_bound();
        let [x, y, scale, bias] = [x, y, scale, bias].map(<FloatTensor<Self>>::into_primitive);
        let (junction, bias_dtype) = (Junction::new(), bias.dtype());
        let y = form.sums.then_some(y);
        let bias = form.biased.then_some(bias);
        let again = (scale.clone(), bias.clone());
        let (node, sum, normed) = match prepared.stateful() {
            OpsKind::Tracked(prep) => {
                let Normed { sum, normed, statistics } = B::norm_rows(x, y, scale.clone(), bias, form.kind);
                let kept = (sum.clone(), statistics, scale, bias_dtype, junction.clone());
                (prep.finish(kept, sum.clone()), sum, normed)
            }
            OpsKind::UnTracked(prep) => {
                let Normed { sum, normed, .. } = B::norm_rows(x, y, scale, bias, form.kind);
                (prep.finish(sum.clone()), sum, normed)
            }
        };
        let sum = branch::<B, C>(&node, &junction, 0, sum);
        let normed = match is_cheap::<B>() {
            false => branch::<B, C>(&node, &junction, 1, normed),
            true => {
                let again = Again::<B, _, 1> {
                    inputs: [node.id()],
                    form: (again, form.kind),
                    value: |[sum], ((scale, bias), kind)| B::norm_rows(sum, None, scale, bias, kind).normed,
                };
                branch_again::<B, BalancedCheckpointing>(&node, &junction, 1, normed, again)
            }
        };
        (sum, normed)
    }
}
