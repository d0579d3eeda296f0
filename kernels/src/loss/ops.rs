//! The losses as operations of a backend.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};

use super::each::Chunks;
use super::head::{self, Form};
use super::rows::{Before, Labels, LossRows};

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
