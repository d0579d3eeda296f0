//! Losses of rows of logits, with Burn's operations for backends without kernels of ours.

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{DType, IndexingUpdateOp, Shape, Slice};

use super::IGNORED;
use crate::half::{to_dtype, wide};
use crate::product::ProductOps;
use crate::zero_results::are_zero;

/// Labels of rows, `[rows]`, -100 where ignored.
#[derive(Debug)]
pub struct Labels<B: Backend>(pub IntTensor<B>);

impl<B: Backend> Clone for Labels<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> Labels<B> {
    /// Selects some rows.
    pub(super) fn slice(&self, rows: Slice) -> Self {
        Self(B::int_slice(self.0.clone(), &[rows]))
    }

    /// `[rows, 1]`, with class 0 where ignored.
    pub(super) fn picked(&self) -> IntTensor<B> {
        match are_zero() {
            true => B::int_mul_scalar(self.in_columns(), 0i32.into()),
            false => B::int_mask_fill(self.in_columns(), self.ignored(), 0i32.into()),
        }
    }

    /// `[rows, 1]`, true where ignored.
    pub(super) fn ignored(&self) -> BoolTensor<B> {
        let dtype = get_device_settings::<B>(&self.0.device()).bool_dtype;
        B::int_equal_elem(self.in_columns(), IGNORED.into(), dtype)
    }

    fn in_columns(&self) -> IntTensor<B> {
        let rows = self.0.shape()[0];
        B::int_reshape(self.0.clone(), Shape::new([rows, 1]))
    }
}

/// Parts of a tensor, along the first axis.
pub(super) type Parts<B> = Vec<FloatTensor<B>>;

/// What is known of the losses of the chunks before one, and the place of its own.
#[derive(Debug)]
pub struct Before<B: Backend> {
    /// What the chunk before this one returned; `None` for the first one.
    pub losses: Option<FloatTensor<B>>,
    /// The chunk's first row.
    pub row: usize,
    /// The rows of all chunks.
    pub rows: usize,
}

impl<B: Backend> Before<B> {
    /// Returns what comes before the only chunk, of so many rows.
    pub(super) fn none(rows: usize) -> Self {
        Self { losses: None, row: 0, rows }
    }
}

/// Losses of rows on one backend. The defaults use Burn's operations.
///
/// A bias is `[classes]`, in any float dtype, and is added to each row of the logits. Losses are handed from chunk to chunk, as
/// their sum or as a backend prefers, and [`total`](Self::total) makes the sum of them.
pub trait LossRows: ProductOps {
    /// Returns the dtype to which the operands of a head's products are cast, if they are in `dtype`.
    fn computes_in(dtype: DType) -> DType {
        dtype
    }

    /// Multiplies hidden states by the weight of a head, and returns the logits in any float dtype.
    fn logits(hidden: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::product(hidden, weight)
    }

    /// Returns `cap · tanh(x / cap)` of each of the logits, which are in f32 or wider.
    fn capped(logits: FloatTensor<Self>, cap: f64) -> FloatTensor<Self> {
        capped::<Self>(logits, cap)
    }

    /// Returns the gradient for logits before they were [capped](Self::capped), times `factor`, given that for the
    /// capped ones.
    fn capped_slopes(
        slopes: FloatTensor<Self>,
        capped: FloatTensor<Self>,
        cap: f64,
        factor: f32,
    ) -> FloatTensor<Self> {
        capped_slopes::<Self>(slopes, capped, cap, factor)
    }

    /// Returns the losses so far, and the logarithm of each row's sum of exponentials, `[rows, 1]`, both in f32 or wider. Rows
    /// without a label may have any logarithm.
    fn losses(
        before: Before<Self>,
        logits: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (sum, logarithms) = losses::<Self>(biased::<Self>(logits, bias), labels, smoothing);
        (added::<Self>(before.losses, sum), logarithms)
    }

    /// Returns the sum `[1]` of the losses of all chunks.
    fn total(losses: FloatTensor<Self>) -> FloatTensor<Self> {
        losses
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
        let by = to_dtype::<Self>(by, slopes.dtype());
        to_dtype::<Self>(Self::float_mul(slopes, Self::float_reshape(by, Shape::new([1, 1]))), dtype)
    }

    /// Returns the losses so far, in f32 or wider, and their gradient for the logits, in their dtype or a wider one. In f16,
    /// the gradient is multiplied by 2¹⁵.
    fn losses_and_slopes(
        before: Before<Self>,
        logits: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        losses_and_slopes::<Self>(before, logits, bias, labels, smoothing)
    }

    /// Sums `[rows, classes]` over its rows, and returns `[classes]` in f32 or wider.
    fn sum_over_rows(slopes: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::column_sums(wide::<Self>(slopes))
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
        added::<Self>(total, product)
    }

    /// Joins the parts of each tensor along their first axis, multiplies each element by the only one of `by`, and returns
    /// the tensors in the dtypes that stand with them.
    fn scaled(all: Vec<(Parts<Self>, DType)>, by: FloatTensor<Self>) -> Vec<FloatTensor<Self>> {
        all.into_iter()
            .map(|(parts, dtype)| scaled::<Self>(joined::<Self>(parts), by.clone(), dtype))
            .collect()
    }
}

/// Returns the number by which a gradient in `dtype` is multiplied before products read it: gradients of single losses are
/// between -1 and 1, and in f16 those below 2⁻²⁴ would be 0, as most probabilities of a large vocabulary are.
pub(super) fn factor(dtype: DType) -> f32 {
    // A power of two, so that rounding is all it changes. The next one overflows: f16 ends at 65,504.
    if dtype == DType::F16 { 32_768.0 } else { 1.0 }
}

/// Adds `more` to what there is.
pub(super) fn added<B: Backend>(total: Option<FloatTensor<B>>, more: FloatTensor<B>) -> FloatTensor<B> {
    match total {
        Some(total) => B::float_add(total, more),
        None => more,
    }
}

/// Returns the logits with their bias, in f32 or wider if there is one.
pub(super) fn biased<B: Backend>(logits: FloatTensor<B>, bias: Option<FloatTensor<B>>) -> FloatTensor<B> {
    let Some(bias) = bias else { return logits };
    let logits = wide::<B>(logits);
    let shape = Shape::new([1, logits.shape()[1]]);
    let bias = B::float_reshape(to_dtype::<B>(bias, logits.dtype()), shape);
    B::float_add(logits, bias)
}

/// Caps logits with Burn's operations.
pub(super) fn capped<B: Backend>(logits: FloatTensor<B>, cap: f64) -> FloatTensor<B> {
    let share = B::float_div_scalar(logits, cap.into());
    B::float_mul_scalar(B::float_tanh(share), cap.into())
}

/// Computes the gradient for logits before they were capped with Burn's operations.
pub(super) fn capped_slopes<B: Backend>(
    slopes: FloatTensor<B>,
    capped: FloatTensor<B>,
    cap: f64,
    factor: f32,
) -> FloatTensor<B> {
    let tanh = B::float_div_scalar(capped, cap.into());
    let lost = B::float_mul(tanh.clone(), tanh);
    let kept = B::float_add_scalar(B::float_neg(lost), 1f32.into());
    let slopes = B::float_mul(slopes, kept);
    if factor == 1.0 { slopes } else { B::float_mul_scalar(slopes, factor.into()) }
}

/// Computes the losses and their gradient with Burn's operations.
pub(super) fn losses_and_slopes<B: Backend>(
    before: Before<B>,
    logits: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    labels: Labels<B>,
    smoothing: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = logits.dtype();
    let logits = wide::<B>(biased::<B>(logits, bias));
    let (sum, logarithms) = losses::<B>(logits.clone(), labels.clone(), smoothing);
    let slopes = slopes::<B>(logits, logarithms, labels, smoothing);
    let slopes = match factor(dtype) {
        1.0 => slopes,
        factor => B::float_mul_scalar(slopes, factor.into()),
    };
    (added::<B>(before.losses, sum), to_dtype::<B>(slopes, dtype))
}

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

/// Multiplies each element by the only one of `by` with Burn's operations.
pub(super) fn scaled<B: Backend>(x: FloatTensor<B>, by: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    let by = B::float_reshape(to_dtype::<B>(by, x.dtype()), Shape::from(vec![1; x.rank()]));
    to_dtype::<B>(B::float_mul(x, by), dtype)
}

/// Joins parts along their first axis.
pub(super) fn joined<B: Backend>(mut parts: Vec<FloatTensor<B>>) -> FloatTensor<B> {
    match parts.len() {
        1 => parts.remove(0),
        _ => B::float_cat(parts, 0),
    }
}
