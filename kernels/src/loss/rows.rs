//! Losses of rows of logits, with Burn's operations for backends without kernels of ours.

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType, IndexingUpdateOp, Shape, Slice};

use crate::product::Products;

/// Labels of rows.
#[derive(Debug)]
pub struct Labels<B: Backend> {
    /// `[rows]`, -100 where ignored.
    pub labels: IntTensor<B>,
    /// `[rows]`, true where ignored.
    pub ignored: BoolTensor<B>,
}

impl<B: Backend> Clone for Labels<B> {
    fn clone(&self) -> Self {
        Self { labels: self.labels.clone(), ignored: self.ignored.clone() }
    }
}

impl<B: Backend> Labels<B> {
    /// Selects some rows.
    pub(super) fn slice(&self, rows: Slice) -> Self {
        Self {
            labels: B::int_slice(self.labels.clone(), &[rows]),
            ignored: B::bool_slice(self.ignored.clone(), &[rows]),
        }
    }

    /// `[rows, 1]`, with class 0 where ignored.
    fn picked(&self) -> IntTensor<B> {
        let rows = self.labels.shape()[0];
        let labels = B::int_mask_fill(self.labels.clone(), self.ignored.clone(), 0i32.into());
        B::int_reshape(labels, Shape::new([rows, 1]))
    }

    /// `[rows, 1]`.
    fn ignored(&self) -> BoolTensor<B> {
        let rows = self.labels.shape()[0];
        B::bool_reshape(self.ignored.clone(), Shape::new([rows, 1]))
    }
}

/// Losses of rows on one backend. The defaults use Burn's operations.
pub trait LossRows: Products {
    /// Returns the dtype to which the operands of a head's products are cast, if they are in `dtype`.
    fn computes_in(dtype: DType) -> DType {
        dtype
    }

    /// Returns the sum of the losses, `[1]`, and the logarithm of each row's sum of exponentials, `[rows, 1]`, both in
    /// f32 or wider.
    fn losses(
        logits: FloatTensor<Self>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        losses::<Self>(logits, labels, smoothing)
    }

    /// Returns the gradient of the losses for the logits, times `by`, `[1]`, in the dtype of the logits.
    fn slopes(
        logits: FloatTensor<Self>,
        logarithms: FloatTensor<Self>,
        labels: Labels<Self>,
        smoothing: f64,
        by: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let dtype = logits.dtype();
        let slopes = slopes::<Self>(logits, logarithms, labels, smoothing);
        let by = cast::<Self>(by, slopes.dtype());
        cast::<Self>(Self::float_mul(slopes, Self::float_reshape(by, Shape::new([1, 1]))), dtype)
    }

    /// Returns the sum of the losses, `[1]`, and their gradient, both in f32 or wider.
    fn losses_and_slopes(
        logits: FloatTensor<Self>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let logits = wide::<Self>(logits);
        let (sum, logarithms) = losses::<Self>(logits.clone(), labels.clone(), smoothing);
        (sum, slopes::<Self>(logits, logarithms, labels, smoothing))
    }

    /// Multiplies `[m, k]` and `[k, n]`, and returns the product in f32 or wider.
    fn wide_product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        wide::<Self>(Self::product(lhs, rhs))
    }

    /// Adds the product of `[m, k]` and `[k, n]` to `total`, in f32 or wider; `None` is zeros.
    fn add_product(
        total: Option<FloatTensor<Self>>,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let product = Self::wide_product(lhs, rhs);
        match total {
            Some(total) => Self::float_add(total, product),
            None => product,
        }
    }

    /// Multiplies each element by the only one of `by`, and returns `dtype`.
    fn scaled(x: FloatTensor<Self>, by: FloatTensor<Self>, dtype: DType) -> FloatTensor<Self> {
        let by = Self::float_reshape(cast::<Self>(by, x.dtype()), Shape::from(vec![1; x.rank()]));
        cast::<Self>(Self::float_mul(x, by), dtype)
    }
}

#[cfg(feature = "cube")]
impl LossRows for burn::backend::Cube {}

/// Computes the losses with Burn's operations.
pub(super) fn losses<B: Backend>(
    logits: FloatTensor<B>,
    labels: Labels<B>,
    smoothing: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let logits = wide::<B>(logits);
    let most = B::float_max_dim(logits.clone(), 1);
    let exponentials = B::float_exp(B::float_sub(logits.clone(), most.clone()));
    let logarithms = B::float_log(B::float_sum_dim(exponentials, 1));
    let of_label = B::float_gather(1, logits.clone(), labels.picked());
    let likely = match smoothing > 0.0 {
        true => B::float_add(
            B::float_mul_scalar(of_label, (1.0 - smoothing).into()),
            B::float_mul_scalar(B::float_mean_dim(logits, 1), smoothing.into()),
        ),
        false => of_label,
    };
    // In this order, large logits cost no precision.
    let losses = B::float_add(logarithms.clone(), B::float_sub(most.clone(), likely));
    let losses = B::float_mask_fill(losses, labels.ignored(), 0f32.into());
    (B::float_sum(losses), B::float_add(logarithms, most))
}

/// Computes the gradient with Burn's operations: `p - ε/C`, and `1 - ε` less for the label.
pub(super) fn slopes<B: Backend>(
    logits: FloatTensor<B>,
    logarithms: FloatTensor<B>,
    labels: Labels<B>,
    smoothing: f64,
) -> FloatTensor<B> {
    let logits = wide::<B>(logits);
    let (shape, device, dtype) = (logits.shape(), logits.device(), logits.dtype());
    let likely = B::float_exp(B::float_sub(logits, logarithms));
    let likely = match smoothing > 0.0 {
        true => B::float_sub_scalar(likely, (smoothing / shape[1] as f64).into()),
        false => likely,
    };
    let of_label = Shape::new([shape[0], 1]);
    let of_label = B::float_full(of_label, (smoothing - 1.0).into(), &device, dtype.into());
    let slopes = B::float_scatter(1, likely, labels.picked(), of_label, IndexingUpdateOp::Add);
    B::float_mask_fill(slopes, B::bool_expand(labels.ignored(), shape), 0f32.into())
}

pub(super) fn wide<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    match x.dtype() {
        DType::F16 | DType::BF16 => B::float_cast(x, FloatDType::F32),
        _ => x,
    }
}

pub(super) fn cast<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if x.dtype() == dtype { x } else { B::float_cast(x, dtype.into()) }
}
