//! The loss of a head and its gradients, of all rows or of each, chunk by chunk.
//!
//! Where each row's loss has a gradient of its own, those of hidden state and head are known in the backward pass only.
//! So it computes the logits again, which keeps no more than one chunk of them.

use std::cell::Cell;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape, Slice};

use super::rows::{Before, Labels, LossRows, Parts, added, biased, factor, joined};
use crate::half::{to_dtype, wide};
use crate::memory::{is_recorded, repeated};
use crate::zero_results::within;

/// What the loss of a head is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Whether the weight is `[classes, width]` instead of `[width, classes]`.
    pub transposed: bool,
    /// Whether the bias is added.
    pub biased: bool,
    /// The bound of the logits.
    pub cap: Option<f64>,
    /// The share of smoothed labels.
    pub smoothing: f64,
    /// The rows of each chunk but the last.
    pub chunk: usize,
}

/// Logits of a chunk on the CPU, in elements: 16 MiB in f32, of which half fits the caches of a server.
const OF_CPU: usize = 1 << 22;

/// Logits of a chunk on a GPU, in bytes: 448 MiB, and few in tests. A step of GPT-2 on 8,192 tokens in half precision has 2
/// chunks. Each costs some ten launches, and reads and writes the whole gradient of the weight.
const OF_GPU: usize = if cfg!(test) { 4 } else { 448 << 20 };

/// The fewest rows of a chunk, so that products of chunks stay as fast as large ones. On a GPU, chunks have multiples of
/// them, so that tiles are whole, and parts of the labels are views.
const ROWS: usize = 256;

fn most_rows(logits: usize, classes: usize) -> usize {
    (logits / classes.max(1)).max(ROWS)
}

/// Returns the most rows of which a [`head_loss`](super::head_loss) on the CPU has the logits at once.
///
/// ```
/// assert_eq!(firebrick_kernels::rows_of_logits(50_257), 256);
/// ```
pub fn rows_of_logits(classes: usize) -> usize {
    let [units, of] = SHARE.get();
    most_rows(OF_CPU, classes * of / units)
}

thread_local! {
    static SHARE: Cell<[usize; 2]> = const { Cell::new([1, 1]) };
}

/// Runs losses of heads that have `units` of `of` parts of the classes of other heads, on the CPU in chunks of the rows that
/// chunks of those have.
///
/// ```
/// use firebrick_kernels::{rows_of_logits, with_share_of_classes};
///
/// assert_eq!(rows_of_logits(4096), 1024);
/// assert_eq!(with_share_of_classes(2, 8, || rows_of_logits(1024)), 1024);
/// ```
pub fn with_share_of_classes<T>(units: usize, of: usize, run: impl FnOnce() -> T) -> T {
    within(&SHARE, [units.max(1), of], run)
}

/// Returns the rows of each chunk of logits in `dtype` but the last: all chunks have about one size.
pub(super) fn chunk(rows: usize, classes: usize, dtype: DType, on_cpu: bool) -> usize {
    let most = if on_cpu { rows_of_logits(classes) } else { most_rows(OF_GPU / dtype.size(), classes) };
    // So passes of all numbers of rows have alike chunks.
    if on_cpu && is_recorded() {
        return rows.clamp(1, most);
    }
    let of_size = |most: usize| rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
    if on_cpu { of_size(most) } else { of_size(most / ROWS * ROWS).next_multiple_of(ROWS) }
}

/// A loss and its gradients.
pub(super) struct LossAndGradients<B: LossRows> {
    /// `[1]`.
    pub sum: FloatTensor<B>,
    /// Of the hidden state, the weight and the bias, each in f32 or wider, if it is wanted, times `factor`.
    pub gradients: [Option<Parts<B>>; 3],
    /// A power of two.
    pub factor: f32,
}

/// Computes the loss, and the gradients that are wanted of hidden state, weight and bias.
pub(super) fn loss<B: LossRows>(
    hidden: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    labels: Labels<B>,
    form: Form,
    wanted: [bool; 3],
) -> LossAndGradients<B> {
    let computed = FloatDType::from(B::computes_in(hidden.dtype()));
    // The weight is widened once for all chunks.
    let weight = B::fast_cast(weight, computed);
    let transpose = B::float_transpose;
    let (to_logits, to_hidden) = match form.transposed {
        true => (transpose(weight.clone()), weight),
        false => (weight.clone(), transpose(weight)),
    };
    let bias = form.biased.then_some(bias);
    let rows = hidden.shape()[0];

    let mut losses: Option<FloatTensor<B>> = None;
    let (mut of_hidden, mut of_bias) = (Vec::new(), None);
    let mut of_weight: Option<FloatTensor<B>> = None;
    repeated((0..rows.max(1)).step_by(form.chunk), |start| {
        let end = (start + form.chunk).min(rows);
        let range = Slice::new(start as isize, Some(end as isize), 1);
        let part =
            if end - start == rows { hidden.clone() } else { B::float_slice(hidden.clone(), &[range]) };
        let part = B::fast_cast(part, computed);
        let logits = B::logits(part.clone(), to_logits.clone());
        let labels = if end - start == rows { labels.clone() } else { labels.slice(range) };
        let before = Before { losses: losses.take(), row: start, rows };
        let bias = bias.clone();
        let (logits, bias) = match form.cap {
            Some(cap) => (B::capped(wide::<B>(biased::<B>(logits, bias)), cap), None),
            None => (logits, bias),
        };
        if wanted == [false; 3] {
            losses = Some(B::losses(before, logits, bias, labels, form.smoothing).0);
            return;
        }
        let capped = form.cap.map(|cap| (logits.clone(), cap));
        let (so_far, slopes) = B::losses_and_slopes(before, logits, bias, labels, form.smoothing);
        losses = Some(so_far);
        let slopes = match capped {
            Some((capped, cap)) => B::capped_slopes(slopes, capped, cap, factor(computed.into())),
            None => slopes,
        };
        if wanted[2] {
            of_bias = Some(added::<B>(of_bias.take(), B::sum_over_rows(slopes.clone())));
        }
        let slopes = if slopes.dtype() == computed.into() { slopes } else { B::fast_cast(slopes, computed) };
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
    });
    let of_hidden = (!of_hidden.is_empty()).then_some(of_hidden);
    let [of_weight, of_bias] = [of_weight, of_bias].map(|whole| whole.map(|whole| vec![whole]));
    let sum = B::total(losses.expect("there is at least one chunk, which may be empty"));
    LossAndGradients { sum, gradients: [of_hidden, of_weight, of_bias], factor: factor(computed.into()) }
}

/// What losses are computed from, for each chunk of rows.
pub(super) struct Chunks<B: LossRows> {
    hidden: FloatTensor<B>,
    /// `[width, classes]`.
    to_logits: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    labels: Labels<B>,
    form: Form,
    computed: FloatDType,
}

/// Some rows.
struct Chunk<B: LossRows> {
    rows: Slice,
    hidden: FloatTensor<B>,
    /// In f32 or wider, with the bias, and bounded.
    logits: FloatTensor<B>,
    labels: Labels<B>,
}

impl<B: LossRows> Chunks<B> {
    pub fn new(
        hidden: FloatTensor<B>,
        weight: FloatTensor<B>,
        bias: FloatTensor<B>,
        labels: Labels<B>,
        form: Form,
    ) -> Self {
        let computed = FloatDType::from(B::computes_in(hidden.dtype()));
        // The weight is widened once for all chunks.
        let weight = B::fast_cast(weight, computed);
        let to_logits = if form.transposed { B::float_transpose(weight) } else { weight };
        Self { hidden, to_logits, bias: form.biased.then_some(bias), labels, form, computed }
    }

    fn each(&self) -> impl Iterator<Item = Chunk<B>> {
        let rows = self.hidden.shape()[0];
        (0..rows.max(1)).step_by(self.form.chunk).map(move |start| {
            let end = (start + self.form.chunk).min(rows);
            let range = Slice::new(start as isize, Some(end as isize), 1);
            let (part, labels) = match end - start == rows {
                true => (self.hidden.clone(), self.labels.clone()),
                false => (B::float_slice(self.hidden.clone(), &[range]), self.labels.slice(range)),
            };
            let hidden = B::fast_cast(part, self.computed);
            let logits = B::logits(hidden.clone(), self.to_logits.clone());
            let logits = wide::<B>(biased::<B>(logits, self.bias.clone()));
            let logits = match self.form.cap {
                Some(cap) => B::capped(logits, cap),
                None => logits,
            };
            Chunk { rows: range, hidden, logits, labels }
        })
    }

    /// Returns the loss of each row and the logarithm of its sum of exponentials, `[rows]` and `[rows, 1]`, in f32 or
    /// wider.
    pub fn losses(&self) -> [FloatTensor<B>; 2] {
        let (mut losses, mut logarithms) = (Vec::new(), Vec::new());
        for Chunk { logits, labels, .. } in self.each() {
            let rows = logits.shape()[0];
            let of_label = B::float_gather(1, logits.clone(), labels.picked());
            let (_, logarithm) = B::losses(Before::none(rows), logits, None, labels.clone(), 0.0);
            let loss = B::float_sub(logarithm.clone(), of_label);
            let loss = B::float_mask_fill(loss, labels.ignored(), 0f32.into());
            losses.push(B::float_reshape(loss, Shape::new([rows])));
            logarithms.push(logarithm);
        }
        [losses, logarithms].map(joined::<B>)
    }

    /// Returns the gradients of hidden state, weight and bias, those that are wanted, in f32 or wider, and the `[1]` by
    /// which they have to be multiplied. `by` is the gradient of each row's loss, `[rows]`.
    pub fn gradients(
        &self,
        logarithms: FloatTensor<B>,
        by: FloatTensor<B>,
        wanted: [bool; 3],
    ) -> ([Option<Parts<B>>; 3], FloatTensor<B>) {
        let by = wide::<B>(by);
        let (device, dtype, rows) = (by.device(), by.dtype(), by.shape()[0]);
        let one = B::float_ones(Shape::new([1]), &device, dtype.into());
        // Products in f16 read numbers between -1 and 1, times a factor.
        let most = B::float_clamp_min(B::float_max(B::float_abs(by.clone())), f32::MIN_POSITIVE.into());
        let by = B::float_reshape(B::float_div(by, most.clone()), Shape::new([rows, 1]));
        let factor = factor(self.computed.into());

        let mut of_hidden = Vec::new();
        let (mut of_weight, mut of_bias): (Option<FloatTensor<B>>, Option<FloatTensor<B>>) = (None, None);
        for Chunk { rows, hidden, logits, labels } in self.each() {
            let part = |x: &FloatTensor<B>| B::float_slice(x.clone(), &[rows]);
            let capped = self.form.cap.map(|cap| (logits.clone(), cap));
            let slopes = B::slopes(logits, part(&logarithms), labels, 0.0, one.clone());
            let slopes = match capped {
                Some((capped, cap)) => B::capped_slopes(slopes, capped, cap, 1.0),
                None => slopes,
            };
            let by = to_dtype::<B>(part(&by), slopes.dtype());
            let slopes = B::float_mul(slopes, by);
            let slopes = if factor == 1.0 { slopes } else { B::float_mul_scalar(slopes, factor.into()) };
            if wanted[2] {
                of_bias = Some(added::<B>(of_bias.take(), B::sum_over_rows(slopes.clone())));
            }
            let slopes = B::fast_cast(slopes, self.computed);
            if wanted[0] {
                let to_hidden = B::float_transpose(self.to_logits.clone());
                of_hidden.push(B::wide_product(slopes.clone(), to_hidden));
            }
            if wanted[1] {
                let (lhs, rhs) = match self.form.transposed {
                    true => (B::float_transpose(slopes), hidden),
                    false => (B::float_transpose(hidden), slopes),
                };
                of_weight = Some(B::add_product(of_weight.take(), lhs, rhs));
            }
        }
        let of_hidden = (!of_hidden.is_empty()).then_some(of_hidden);
        let [of_weight, of_bias] = [of_weight, of_bias].map(|whole| whole.map(|whole| vec![whole]));
        let scale = if factor == 1.0 { most } else { B::float_mul_scalar(most, factor.recip().into()) };
        ([of_hidden, of_weight, of_bias], scale)
    }
}
