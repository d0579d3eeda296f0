//! Kernels in which one cube computes one row of logits, in f32.
//!
//! A cube reads its row once for the largest logit and the sum of the exponentials together, and once more if it writes the
//! gradient, which takes the place of the logits where nothing else holds them. One more cube adds the losses of the rows.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its row, and its label.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::IGNORED;
use super::rows::factor;
use crate::cube::{
    contiguous, element, empty, grid, most_of_cube, sum_of_cube, total, units, with_stride, written,
};

/// Which tensors there are besides logits and labels, and the share of smoothed labels.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub biased: bool,
    /// Whether the losses are added to a total.
    pub adds: bool,
    pub smoothing: f32,
}

/// Returns the sum of the losses, and the gradient of the logits or the logarithms of the rows. The inputs are logits, labels,
/// bias and total.
pub(super) fn losses_of(inputs: Vec<CubeTensor>, form: Form, sloped: bool) -> [CubeTensor; 2] {
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("as many inputs as the form has");
    let (logits, stride) = with_stride(next());
    let labels = contiguous(next());
    // A tensor that the form lacks is bound to another one, and not read or written.
    let bias = if form.biased { contiguous(next()) } else { labels.clone() };
    let before = form.adds.then(|| contiguous(next()));
    let [rows, classes] = logits.meta.shape().dims();
    let losses = empty(&logits, [rows], DType::F32);
    let (slopes, logarithms) = match sloped {
        true => (written(&logits), losses.clone()),
        false => (logits.clone(), empty(&logits, [rows, 1], DType::F32)),
    };
    let units = units(&logits, classes);
    // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row. A label beyond the classes
    // is read as the last class.
    unsafe {
        losses_kernel::launch_unchecked(
            &logits.client,
            grid(&logits, rows),
            CubeDim::new_1d(units),
            logits.required_address_type(),
            logits.clone().into_buffer_arg(),
            bias.clone().into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            losses.clone().into_buffer_arg(),
            logarithms.clone().into_buffer_arg(),
            slopes.clone().into_buffer_arg(),
            rows,
            classes,
            stride,
            slopes.meta.strides()[0],
            form.smoothing,
            factor(slopes.dtype),
            form.biased,
            form.smoothing > 0.0,
            sloped,
            units,
            [element(&logits), if form.biased { element(&bias) } else { element(&losses) }, element(&labels)],
        );
    }
    [total(losses, rows, before), if sloped { slopes } else { logarithms }]
}

/// Returns a logit with its bias.
#[cube]
fn logit<F: Float, B: Float>(
    logits: &[F],
    bias: &[B],
    place: usize,
    class: usize,
    #[comptime] biased: bool,
) -> f32 {
    let mut logit = f32::cast_from(logits[place]);
    if biased {
        logit += f32::cast_from(bias[class]);
    }
    logit
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn losses_kernel<F: Float, B: Float, I: Numeric>(
    logits: &[F],
    bias: &[B],
    labels: &[I],
    losses: &mut [f32],
    logarithms: &mut [f32],
    slopes: &mut [F],
    rows: usize,
    classes: usize,
    stride: usize,
    stride_of_slopes: usize,
    smoothing: f32,
    factor: f32,
    #[comptime] biased: bool,
    #[comptime] smoothed: bool,
    #[comptime] sloped: bool,
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
    let mut likely = logit::<F, B>(logits, bias, start + class, class, biased);
    // What a row without a label holds does not matter, even if it is not a number.
    let mut read = 0usize;
    if label != IGNORED {
        read = classes;
    }

    let mut most = f32::new(-3.0e38);
    let mut sum = 0.0f32;
    let mut of_logits = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < read {
        let value = logit::<F, B>(logits, bias, start + at, at, biased);
        if value > most {
            sum = sum * (most - value).exp() + 1.0;
            most = value;
        } else {
            sum += (value - most).exp();
        }
        if smoothed {
            of_logits += value;
        }
        at += step;
    }
    let most_of_row = most_of_cube(&mut shared, most, units);
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
        while at < classes {
            let mut slope = 0.0f32;
            if label != IGNORED {
                let value = logit::<F, B>(logits, bias, start + at, at, biased);
                slope = (value - most_of_row).exp() * inverse - share;
                if at == class {
                    slope -= 1.0 - smoothing;
                }
            }
            slopes[row * stride_of_slopes + at] = F::cast_from(slope * factor);
            at += step;
        }
    }
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
    let units = units(&logits, classes);
    // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row.
    unsafe {
        slopes_kernel::launch_unchecked(
            &logits.client,
            grid(&logits, rows),
            CubeDim::new_1d(units),
            logits.required_address_type(),
            logits.clone().into_buffer_arg(),
            logarithms.into_buffer_arg(),
            labels.clone().into_buffer_arg(),
            by.clone().into_buffer_arg(),
            slopes.clone().into_buffer_arg(),
            rows,
            classes,
            stride,
            slopes.meta.strides()[0],
            smoothing,
            units,
            [element(&logits), element(&labels), element(&by)],
        );
    }
    slopes
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn slopes_kernel<F: Float, I: Numeric, D: Float>(
    logits: &[F],
    logarithms: &[f32],
    labels: &[I],
    by: &[D],
    slopes: &mut [F],
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
    while at < classes {
        let mut slope = 0.0f32;
        if label != IGNORED {
            slope = (f32::cast_from(logits[row * stride + at]) - logarithm).exp() - share;
            if at == class {
                slope -= 1.0 - smoothing;
            }
            slope *= by;
        }
        slopes[row * stride_of_slopes + at] = F::cast_from(slope);
        at += units as usize;
    }
}
