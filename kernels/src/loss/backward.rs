//! The gradients of the losses.

use std::array::from_fn;

use burn::backend::TensorMetadata;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::DType;

use super::each::Chunks;
use super::head::{self, Form, Found};
use super::ops::LossOps;
use super::rows::{Labels, LossRows, Parts};

/// Computes the gradient from the logits.
#[derive(Debug)]
struct CrossEntropy;

impl<B: LossRows> Backward<B, 1> for CrossEntropy {
    type State = (FloatTensor<B>, FloatTensor<B>, Labels<B>, f64);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (logits, logarithms, labels, smoothing) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |by| {
            B::slopes(logits, logarithms, labels, smoothing, by)
        });
    }
}

/// Multiplies gradients that were computed with the loss.
#[derive(Debug)]
struct Known;

impl<B: LossRows> Backward<B, 3> for Known {
    /// The gradients, times a factor, and their dtypes.
    type State = ([(Option<Parts<B>>, DType); 3], f32);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (gradients, factor) = ops.state;
        let by = grads.consume::<B>(&ops.node);
        let by = if factor == 1.0 { by } else { B::float_mul_scalar(by, factor.recip().into()) };
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (node, gradient) in ops.parents.into_iter().zip(scaled::<B>(wanted, gradients, by)) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// Computes the gradients from logits that are computed again.
#[derive(Debug)]
struct OfEach;

impl<B: LossRows> Backward<B, 3> for OfEach {
    /// Hidden state, weight and bias, the labels, the rows' logarithms, and what is computed from them.
    type State = ([FloatTensor<B>; 3], Labels<B>, FloatTensor<B>, Form);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let ([hidden, weight, bias], labels, logarithms, form) = ops.state;
        let dtypes = [&hidden, &weight, &bias].map(TensorMetadata::dtype);
        let by = grads.consume::<B>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let chunks = Chunks::<B>::new(hidden, weight, bias, labels, form);
        let (found, scale) = chunks.gradients(logarithms, by, wanted);
        let mut dtypes = dtypes.into_iter();
        let found = found.map(|parts| (parts, dtypes.next().unwrap_or(DType::F32)));
        for (node, gradient) in ops.parents.into_iter().zip(scaled::<B>(wanted, found, scale)) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// Returns the wanted gradients, times the only element of `by`, in the dtypes that stand with them.
fn scaled<B: LossRows>(
    wanted: [bool; 3],
    gradients: [(Option<Parts<B>>, DType); 3],
    by: FloatTensor<B>,
) -> [Option<FloatTensor<B>>; 3] {
    let gradients = gradients.map(|(parts, dtype)| parts.map(|parts| (parts, dtype)));
    let is_there: [bool; 3] = from_fn(|at| wanted[at] && gradients[at].is_some());
    let all = gradients.into_iter().zip(is_there).filter_map(|(parts, is_there)| parts.filter(|_| is_there));
    let mut found = B::scaled(all.collect(), by).into_iter();
    is_there.map(|is_there| if is_there { found.next() } else { None })
}

impl<B: LossRows, C: CheckpointStrategy> LossOps for Autodiff<B, C> {
    fn cross_entropy(
        logits: FloatTensor<Self>,
        labels: IntTensor<Self>,
        smoothing: f64,
    ) -> FloatTensor<Self> {
        let labels = Labels(labels);
        let prepared = CrossEntropy.prepare::<C>([logits.node()]).compute_bound();
        let logits = logits.into_primitive();
        match prepared.stateful() {
            OpsKind::Tracked(prep) => {
                let (sum, logarithms) = B::losses(None, logits.clone(), None, labels.clone(), smoothing);
                prep.finish((logits, logarithms, labels, smoothing), sum)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::losses(None, logits, None, labels, smoothing).0),
        }
    }

    fn head_loss(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        labels: IntTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self> {
        let labels = Labels(labels);
        let wanted = [hidden.is_tracked(), weight.is_tracked(), form.biased && bias.is_tracked()];
        let prepared = Known.prepare::<C>([hidden.node(), weight.node(), bias.node()]).compute_bound();
        let [hidden, weight, bias] = [hidden, weight, bias].map(<FloatTensor<Self>>::into_primitive);
        let dtypes = [&hidden, &weight, &bias].map(TensorMetadata::dtype);
        let Found { sum, gradients, factor } = head::loss::<B>(hidden, weight, bias, labels, form, wanted);
        match prepared.stateful() {
            OpsKind::Tracked(prep) => {
                let mut dtypes = dtypes.into_iter();
                let kept = gradients.map(|kept| (kept, dtypes.next().unwrap_or(DType::F32)));
                prep.finish((kept, factor), sum)
            }
            OpsKind::UnTracked(prep) => prep.finish(sum),
        }
    }

    fn head_losses(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        labels: IntTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self> {
        let labels = Labels(labels);
        let prepared = OfEach.prepare::<C>([hidden.node(), weight.node(), bias.node()]).compute_bound();
        let read = [hidden, weight, bias].map(<FloatTensor<Self>>::into_primitive);
        let [hidden, weight, bias] = read.clone();
        let chunks = Chunks::<B>::new(hidden, weight, bias, labels.clone(), form);
        let [losses, logarithms] = chunks.losses();
        match prepared.stateful() {
            OpsKind::Tracked(prep) => prep.finish((read, labels, logarithms, form), losses),
            OpsKind::UnTracked(prep) => prep.finish(losses),
        }
    }
}
