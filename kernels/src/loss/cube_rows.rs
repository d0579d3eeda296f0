//! Kernels in which one cube computes one row of logits, in f32.
//!
//! A cube reads its row once for the largest logit and the sum of the exponentials together, and once more if it writes the
//! gradient, which takes the place of the logits where nothing else holds them. Once all chunks are computed, one more cube adds
//! the losses of the rows.
//! A unit reads and writes 16 bytes at a time where rows begin so, also over the padding behind a row.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its row, and its label.

use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::IGNORED;
use super::rows::factor;
use crate::cube::{
    contiguous, element, empty, grid, most_of_cube, part_of, sum_of_cube, together, units, with_stride,
    written,
};

/// Which tensors there are besides logits and labels, the place of the chunk, and the share of smoothed labels.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub biased: bool,
    /// Whether there are no losses of chunks before this one.
    pub is_first: bool,
    /// The first row of the chunk.
    pub row: usize,
    /// The rows of all chunks.
    pub rows: usize,
    pub smoothing: f32,
}

/// Returns the losses of all rows, of which this chunk's are written, and the gradient of the logits or the logarithms of the
/// rows. The inputs are logits, labels, bias and the losses so far.
pub(super) fn losses_of(inputs: Vec<CubeTensor>, form: Form, sloped: bool) -> [CubeTensor; 2] {
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("as many inputs as the form has");
    let (logits, stride) = with_stride(next());
    let labels = contiguous(next());
    // A tensor that the form lacks is bound to another one, and not read or written. It has a whole vector of elements.
    let bias = if form.biased { contiguous(next()) } else { logits.clone() };
    let all = match form.is_first {
        true => empty(&logits, [form.rows], DType::F32),
        false => {
            let so_far = next();
            if so_far.handle.can_mut() { so_far } else { contiguous(so_far.copy()) }
        }
    };
    let [rows, classes] = logits.meta.shape().dims();
    let losses = part_of(&all, Shape::new([rows]), form.row);
    let (slopes, logarithms) = match sloped {
        true => (written(&logits), losses.clone()),
        false => (logits.clone(), empty(&logits, [rows, 1], DType::F32)),
    };
    let together = width_of(&logits, &slopes, form.biased.then_some(&bias));
    let units = units(&logits, classes.div_ceil(together));
    // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row, with the padding behind it.
    // A label beyond the classes is read as the last class.
    unsafe {
        losses_kernel::launch_unchecked(
            &logits.client,
            grid(&logits, rows),
            CubeDim::new_1d(units),
            logits.required_address_type(),
            together,
            logits.clone().into_buffer_arg(),
            bias.clone().into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            losses.clone().into_buffer_arg(),
            logarithms.clone().into_buffer_arg(),
            slopes.clone().into_buffer_arg(),
            rows,
            classes,
            stride / together,
            slopes.meta.strides()[0] / together,
            form.smoothing,
            factor(slopes.dtype),
            form.biased,
            form.smoothing > 0.0,
            sloped,
            !classes.is_multiple_of(together),
            units,
            [element(&logits), element(&bias), element(&labels)],
        );
    }
    [all, if sloped { slopes } else { logarithms }]
}

/// Returns how many classes a unit reads at once. If it does not divide their number, the last of them are padding, which is
/// there.
fn width_of(logits: &CubeTensor, slopes: &CubeTensor, bias: Option<&CubeTensor>) -> usize {
    let [rows, classes] = logits.meta.shape().dims();
    let is_padded =
        |x: &CubeTensor| x.handle.size_in_used() >= (rows * x.meta.strides()[0] * x.dtype.size()) as u64;
    let is_all_padded = bias.is_none() && is_padded(logits) && is_padded(slopes);
    let mut tensors = vec![logits, slopes];
    tensors.extend(bias);
    together(&tensors, |together| {
        let in_rows = |x: &CubeTensor| x.meta.strides()[0].is_multiple_of(together);
        in_rows(logits) && in_rows(slopes) && (classes.is_multiple_of(together) || is_all_padded)
    })
}

/// Returns neighbouring logits with their bias.
#[cube]
fn logits_at<F: Float, B: Float, N: Size>(
    logits: &[Vector<F, N>],
    bias: &[Vector<B, N>],
    start: usize,
    at: usize,
    #[comptime] biased: bool,
) -> Vector<f32, N> {
    let mut found = Vector::<f32, N>::cast_from(logits[start + at]);
    if biased {
        found += Vector::cast_from(bias[at]);
    }
    found
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn losses_kernel<F: Float, B: Float, I: Numeric, N: Size>(
    logits: &[Vector<F, N>],
    bias: &[Vector<B, N>],
    labels: &[I],
    losses: &mut [f32],
    logarithms: &mut [f32],
    slopes: &mut [Vector<F, N>],
    rows: usize,
    classes: usize,
    stride: usize,
    stride_of_slopes: usize,
    smoothing: f32,
    factor: f32,
    #[comptime] biased: bool,
    #[comptime] smoothed: bool,
    #[comptime] sloped: bool,
    #[comptime] padded: bool,
    #[comptime] units: u32,
    #[define(F, B, I)] _dtypes: [ElemType; 3],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let start = row * stride;
    let step = units as usize;
    let label = i32::cast_from(labels[row]);
    let class = class_of(label, classes);
    // Before another unit writes the gradient in its place.
    let of_class = logits_at::<F, B, N>(logits, bias, start, class / N::value(), biased);
    let mut likely = of_class.extract_dynamic(class % N::value());
    // What a row without a label holds does not matter, even if it is not a number.
    let mut read = 0usize;
    if label != IGNORED {
        read = classes;
    }

    let mut most = f32::new(-3.0e38);
    let mut sum = 0.0f32;
    let mut of_logits = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at * N::value() < read {
        let values = logits_at::<F, B, N>(logits, bias, start, at, biased);
        let mut higher = most;
        #[unroll]
        for i in 0..N::value() {
            if is_class(at * N::value() + i, classes, padded) {
                higher = max(higher, values.extract(i));
            }
        }
        sum *= (most - higher).exp();
        most = higher;
        #[unroll]
        for i in 0..N::value() {
            if is_class(at * N::value() + i, classes, padded) {
                sum += (values.extract(i) - most).exp();
                if smoothed {
                    of_logits += values.extract(i);
                }
            }
        }
        at += step;
    }
    let most_of_row = most_of_cube::<f32>(&mut shared, most, units);
    let sum = sum_of_cube(&mut shared, sum * (most - most_of_row).exp(), units);
    if smoothed {
        let mean = sum_of_cube(&mut shared, of_logits, units) / f32::cast_from(classes as u32);
        likely = likely * (1.0 - smoothing) + mean * smoothing;
    }

    if UNIT_POS == 0 {
        let mut loss = 0.0f32;
        let mut logarithm = 0.0f32;
        if label != IGNORED {
            // In this order, large logits cost no precision.
            loss = sum.ln() + (most_of_row - likely);
            logarithm = sum.ln() + most_of_row;
        }
        losses[row] = loss;
        if !sloped {
            logarithms[row] = logarithm;
        }
    }
    if sloped {
        let share = smoothing / f32::cast_from(classes as u32);
        let inverse = 1.0 / sum;
        let mut at = UNIT_POS as usize;
        while at * N::value() < classes {
            let mut slope = Vector::<f32, N>::new(0.0f32);
            if label != IGNORED {
                let values = logits_at::<F, B, N>(logits, bias, start, at, biased);
                let likely = (values - Vector::new(most_of_row)).exp() * Vector::new(inverse);
                slope = without_label::<N>(likely - Vector::new(share), at, class, 1.0 - smoothing);
            }
            slopes[row * stride_of_slopes + at] = Vector::cast_from(slope * Vector::new(factor));
            at += step;
        }
    }
}

/// Returns whether a number is that of a class: behind the last one is padding.
#[cube]
fn is_class(number: usize, classes: usize, #[comptime] padded: bool) -> bool {
    let mut is = true.runtime();
    if padded {
        is = number < classes;
    }
    is
}

/// Subtracts what the label is worth from its class, if it is one of these neighbours.
#[cube]
fn without_label<N: Size>(slopes: Vector<f32, N>, at: usize, class: usize, worth: f32) -> Vector<f32, N> {
    let mut found = slopes;
    #[unroll]
    for i in 0..N::value() {
        if at * N::value() + i == class {
            found.insert(i, slopes.extract(i) - worth);
        }
    }
    found
}

/// Returns a class that exists: the label, if it is one.
#[cube]
fn class_of(label: i32, classes: usize) -> usize {
    min(usize::cast_from(u32::cast_from(label)), classes - 1)
}

/// Returns the gradient of the logits. The inputs are logits, logarithms, labels and the number that multiplies it.
pub(super) fn slopes_of(inputs: Vec<CubeTensor>, smoothing: f32) -> CubeTensor {
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("four inputs");
    let (logits, stride) = with_stride(next());
    let (logarithms, labels, by) = (contiguous(next()), contiguous(next()), contiguous(next()));
    let [rows, classes] = logits.meta.shape().dims();
    let slopes = written(&logits);
    let together = width_of(&logits, &slopes, None);
    let units = units(&logits, classes.div_ceil(together));
    // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row, with the padding behind it.
    unsafe {
        slopes_kernel::launch_unchecked(
            &logits.client,
            grid(&logits, rows),
            CubeDim::new_1d(units),
            logits.required_address_type(),
            together,
            logits.clone().into_buffer_arg(),
            logarithms.into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            by.clone().into_buffer_arg(),
            slopes.clone().into_buffer_arg(),
            rows,
            classes,
            stride / together,
            slopes.meta.strides()[0] / together,
            smoothing,
            units,
            [element(&logits), element(&labels), element(&by)],
        );
    }
    slopes
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn slopes_kernel<F: Float, I: Numeric, D: Float, N: Size>(
    logits: &[Vector<F, N>],
    logarithms: &[f32],
    labels: &[I],
    by: &[D],
    slopes: &mut [Vector<F, N>],
    rows: usize,
    classes: usize,
    stride: usize,
    stride_of_slopes: usize,
    smoothing: f32,
    #[comptime] units: u32,
    #[define(F, I, D)] _dtypes: [ElemType; 3],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let label = i32::cast_from(labels[row]);
    let class = class_of(label, classes);
    let logarithm = logarithms[row];
    let share = smoothing / f32::cast_from(classes as u32);
    let by = f32::cast_from(by[0]);
    let mut at = UNIT_POS as usize;
    while at * N::value() < classes {
        let mut slope = Vector::<f32, N>::new(0.0f32);
        if label != IGNORED {
            let values = Vector::<f32, N>::cast_from(logits[row * stride + at]);
            let likely = (values - Vector::new(logarithm)).exp();
            slope = without_label::<N>(likely - Vector::new(share), at, class, 1.0 - smoothing);
            slope *= Vector::new(by);
        }
        slopes[row * stride_of_slopes + at] = Vector::cast_from(slope);
        at += units as usize;
    }
}
