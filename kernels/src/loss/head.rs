//! The loss of a head and its gradients, chunk by chunk.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{FloatDType, Shape, Slice};

use super::rows::{Labels, LossRows, wide};

/// What the loss of a head is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Whether the weight is `[classes, width]` instead of `[width, classes]`.
    pub transposed: bool,
    /// Whether the bias is added.
    pub biased: bool,
    /// The share of smoothed labels.
    pub smoothing: f64,
}

/// Logits of a chunk, in elements: 16 MiB in f32.
const LOGITS: usize = 1 << 22;

/// Rows of a chunk, so that products of chunks stay as fast as large ones.
const ROWS: usize = 256;

/// Returns the rows of each chunk but the last.
pub(super) fn chunk(rows: usize, classes: usize) -> usize {
    let most = (LOGITS / classes.max(1)).max(ROWS);
    // Chunks of about one size.
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}

/// A loss and its gradients.
pub(super) struct Found<B: LossRows> {
    /// `[1]`.
    pub sum: FloatTensor<B>,
    /// Of the hidden state, the weight and the bias, each in f32 or wider, if it is wanted.
    pub gradients: [Option<FloatTensor<B>>; 3],
}

/// Computes the loss, and the gradients that are wanted of hidden state, weight and bias.
pub(super) fn loss<B: LossRows>(
    hidden: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    labels: Labels<B>,
    form: Form,
    wanted: [bool; 3],
) -> Found<B> {
    let computed = FloatDType::from(B::computes_in(hidden.dtype()));
    // The weight is widened once for all chunks.
    let weight = B::fast_cast(weight, computed);
    let transpose = B::float_transpose;
    let (to_logits, to_hidden) = match form.transposed {
        true => (transpose(weight.clone()), weight),
        false => (weight.clone(), transpose(weight)),
    };
    let classes = to_logits.shape()[1];
    let bias = form.biased.then(|| B::float_reshape(wide::<B>(bias), Shape::new([1, classes])));
    let rows = hidden.shape()[0];
    let size = chunk(rows, classes);

    let mut sum: Option<FloatTensor<B>> = None;
    let (mut of_hidden, mut of_bias) = (Vec::new(), None);
    let mut of_weight: Option<FloatTensor<B>> = None;
    let added = |total: &mut Option<FloatTensor<B>>, more: FloatTensor<B>| {
        *total = Some(match total.take() {
            Some(total) => B::float_add(total, more),
            None => more,
        });
    };
    for start in (0..rows.max(1)).step_by(size) {
        let end = (start + size).min(rows);
        let range = Slice::new(start as isize, Some(end as isize), 1);
        let part =
            if end - start == rows { hidden.clone() } else { B::float_slice(hidden.clone(), &[range]) };
        let part = B::fast_cast(part, computed);
        let logits = B::wide_product(part.clone(), to_logits.clone());
        let logits = match &bias {
            Some(bias) => B::float_add(logits, bias.clone()),
            None => logits,
        };
        let labels = if end - start == rows { labels.clone() } else { labels.slice(range) };
        if wanted == [false; 3] {
            added(&mut sum, B::losses(logits, labels, form.smoothing).0);
            continue;
        }
        let (of_chunk, slopes) = B::losses_and_slopes(logits, labels, form.smoothing);
        added(&mut sum, of_chunk);
        if wanted[2] {
            let over_rows = B::float_sum_dim(slopes.clone(), 0);
            added(&mut of_bias, B::float_reshape(over_rows, Shape::new([classes])));
        }
        let slopes = B::fast_cast(slopes, computed);
        if wanted[0] {
            of_hidden.push(B::wide_product(slopes.clone(), to_hidden.clone()));
        }
        if wanted[1] {
            let (lhs, rhs) = match form.transposed {
                true => (transpose(slopes), part),
                false => (transpose(part), slopes),
            };
            of_weight = Some(B::add_product(of_weight.take(), lhs, rhs));
        }
    }
    let of_hidden = match of_hidden.len() {
        0 | 1 => of_hidden.pop(),
        _ => Some(B::float_cat(of_hidden, 0)),
    };
    let sum = sum.expect("there is at least one chunk, which may be empty");
    Found { sum, gradients: [of_hidden, of_weight, of_bias] }
}
