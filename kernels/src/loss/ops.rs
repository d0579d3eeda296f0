//! The losses as operations of a backend, with their gradients.

use std::array::from_fn;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;

use super::rows::{Before, Labels, LossRows};
use super::{
    head::{self, Chunks, Form, LossAndGradients},
    rows::Parts,
};
use crate::autodiff::differentiable;

/// Cross-entropy losses. Call [`cross_entropy`](crate::cross_entropy), [`head_loss`](crate::head_loss) or
/// [`head_losses`](crate::head_losses), which take tensors.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait LossOps: Backend {
    /// Returns the loss `[1]` of `logits`, `[rows, classes]`. Rows with the label -100 have none.
    fn cross_entropy(logits: FloatTensor<Self>, labels: IntTensor<Self>, smoothing: f64)
    -> FloatTensor<Self>;

    /// Returns the loss `[1]` of the logits of `hidden`, `[rows, width]`. `bias` is read if the form is biased.
    fn head_loss(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        labels: IntTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self>;

    /// Returns the loss of each row, `[rows]`, of the logits of `hidden`, `[rows, width]`, in f32 or wider. `bias` is
    /// read if the form is biased.
    fn head_losses(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        labels: IntTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self>;
}

impl<B: LossRows> LossOps for B {
    fn cross_entropy(logits: FloatTensor<B>, labels: IntTensor<B>, smoothing: f64) -> FloatTensor<B> {
        let before = Before::none(logits.shape()[0]);
        B::total(B::losses(before, logits, None, Labels(labels), smoothing).0)
    }

    fn head_loss(
        hidden: FloatTensor<B>,
        weight: FloatTensor<B>,
        bias: FloatTensor<B>,
        labels: IntTensor<B>,
        form: Form,
    ) -> FloatTensor<B> {
        head::loss::<B>(hidden, weight, bias, Labels(labels), form, [false; 3]).sum
    }

    fn head_losses(
        hidden: FloatTensor<B>,
        weight: FloatTensor<B>,
        bias: FloatTensor<B>,
        labels: IntTensor<B>,
        form: Form,
    ) -> FloatTensor<B> {
        let [losses, _] = Chunks::<B>::new(hidden, weight, bias, Labels(labels), form).losses();
        losses
    }
}

impl<B: LossRows, C: CheckpointStrategy> LossOps for Autodiff<B, C> {
    /// The gradient is computed from the logits.
    fn cross_entropy(
        logits: FloatTensor<Self>,
        labels: IntTensor<Self>,
        smoothing: f64,
    ) -> FloatTensor<Self> {
        let labels = Labels(labels);
        differentiable::<B, C, _, _>(
            [logits],
            |[logits]| {
                let before = Before::none(logits.shape()[0]);
                let (losses, logarithms) = B::losses(before, logits.clone(), None, labels.clone(), smoothing);
                (B::total(losses), (logits, logarithms, labels, smoothing))
            },
            |(logits, logarithms, labels, smoothing), by, _| {
                [Some(B::slopes(logits, logarithms, labels, smoothing, by))]
            },
        )
    }

    /// The gradients are computed with the loss.
    fn head_loss(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        labels: IntTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self> {
        let wanted = [hidden.is_tracked(), weight.is_tracked(), form.biased && bias.is_tracked()];
        differentiable::<B, C, _, _>(
            [hidden, weight, bias],
            |[hidden, weight, bias]| {
                let mut dtypes = [&hidden, &weight, &bias].map(TensorMetadata::dtype).into_iter();
                let LossAndGradients { sum, gradients, factor } =
                    head::loss::<B>(hidden, weight, bias, Labels(labels), form, wanted);
                let kept = gradients.map(|kept| (kept, dtypes.next().unwrap_or(DType::F32)));
                (sum, (kept, factor))
            },
            |(gradients, factor), by, wanted| {
                let by = if factor == 1.0 { by } else { B::float_mul_scalar(by, factor.recip().into()) };
                scaled::<B>(wanted, gradients, by)
            },
        )
    }

    /// The gradients are computed from logits that are computed again.
    fn head_losses(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        labels: IntTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self> {
        let labels = Labels(labels);
        differentiable::<B, C, _, _>(
            [hidden, weight, bias],
            |read| {
                let [hidden, weight, bias] = read.clone();
                let chunks = Chunks::<B>::new(hidden, weight, bias, labels.clone(), form);
                let [losses, logarithms] = chunks.losses();
                (losses, (read, labels, logarithms, form))
            },
            |([hidden, weight, bias], labels, logarithms, form), by, wanted| {
                let mut dtypes = [&hidden, &weight, &bias].map(TensorMetadata::dtype).into_iter();
                let chunks = Chunks::<B>::new(hidden, weight, bias, labels, form);
                let (found, scale) = chunks.gradients(logarithms, by, wanted);
                let found = found.map(|parts| (parts, dtypes.next().unwrap_or(DType::F32)));
                scaled::<B>(wanted, found, scale)
            },
        )
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
