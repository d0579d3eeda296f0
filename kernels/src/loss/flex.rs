//! Rows of logits on all cores.
//!
//! One row of logits, which the compiler turns into vectors of the processor that [`pulp`] detects. They use no fused
//! multiply-add, so each result is the same on all processors.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, IntDType, Shape, bf16, f16};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::IGNORED;
use super::rows::{
    Before, Labels, LossRows, Parts, added, biased, capped as composed_cap, capped_slopes as composed_slopes,
    joined, losses, losses_and_slopes, slopes,
};
use crate::cap::{capped, slope_of_capped};
use crate::elements::mapped;
use crate::flex::{self, Buffer, Lane, Part, TASK, adjacent, elements, sum_of, tensor, widened};
use crate::gelu::exp;
use crate::half::{HalfOps, wide};
use crate::off::Kernel;
use crate::product::{ProductOps, add_product, has_dots, wide_product};
use crate::zero_results::are_zero;

impl LossRows for Flex {
    fn computes_in(dtype: DType) -> DType {
        match dtype {
            // The slopes of f16 would be too small for it: they have no loss scale yet.
            DType::F16 => DType::F32,
            DType::BF16 if !has_dots() => DType::F32,
            dtype => dtype,
        }
    }

    fn logits(hidden: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::wide_product(hidden, weight)
    }

    fn capped(logits: FloatTensor<Self>, cap: f64) -> FloatTensor<Self> {
        if logits.dtype() != DType::F32 || Kernel::Losses.is_off() {
            return composed_cap::<Self>(logits, cap);
        }
        mapped([logits], move |[logit]| capped(logit, cap as f32))
    }

    fn capped_slopes(
        slopes: FloatTensor<Self>,
        capped: FloatTensor<Self>,
        cap: f64,
        factor: f32,
    ) -> FloatTensor<Self> {
        if slopes.dtype() != DType::F32 || Kernel::Losses.is_off() {
            return composed_slopes::<Self>(slopes, capped, cap, factor);
        }
        mapped([slopes, capped], move |[slope, value]| factor * slope * slope_of_capped(value, cap as f32))
    }

    fn losses(
        before: Before<Self>,
        logits: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let logits = biased::<Self>(logits, bias);
        let (sum, logarithms) = match logits.dtype() {
            _ if logits.layout().num_elements() == 0 || Kernel::Losses.is_off() => {
                losses::<Self>(logits, labels, smoothing)
            }
            DType::F32 => found::<f32>(logits, labels, smoothing),
            DType::BF16 => found::<bf16>(logits, labels, smoothing),
            DType::F16 => found::<f16>(logits, labels, smoothing),
            _ => losses::<Self>(logits, labels, smoothing),
        };
        (added::<Self>(before.losses, sum), logarithms)
    }

    fn slopes(
        logits: FloatTensor<Self>,
        logarithms: FloatTensor<Self>,
        labels: Labels<Self>,
        smoothing: f64,
        by: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        match logits.dtype() {
            dtype if Kernel::Losses.is_off() => {
                scaled(slopes::<Self>(logits, logarithms, labels, smoothing), by_of(by), dtype)
            }
            DType::F32 => descents::<f32>(logits, logarithms, labels, smoothing, by),
            DType::BF16 => descents::<bf16>(logits, logarithms, labels, smoothing, by),
            DType::F16 => descents::<f16>(logits, logarithms, labels, smoothing, by),
            dtype => scaled(slopes::<Self>(logits, logarithms, labels, smoothing), by_of(by), dtype),
        }
    }

    fn losses_and_slopes(
        before: Before<Self>,
        logits: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let logits = wide::<Self>(biased::<Self>(logits, bias));
        let is_empty = logits.layout().num_elements() == 0;
        if logits.dtype() != DType::F32 || is_empty || Kernel::Losses.is_off() {
            return losses_and_slopes::<Self>(before, logits, None, labels, smoothing);
        }
        let mut logits = whole(logits);
        let [rows, classes] = logits.layout().shape().dims();
        if are_zero() {
            return (added::<Self>(before.losses, total(&vec![0.0; rows])), logits);
        }
        let targets = targets(labels, classes, smoothing);
        let arch = Arch::new();
        let mut losses = Vec::with_capacity(rows);
        let all = logits.storage_mut::<f32>().par_chunks_mut(classes).zip(&targets);
        let of_row = |(row, target): (&mut [f32], &Option<Target>)| match *target {
            Some(target) => arch.dispatch(LossAndSlope { row, target }),
            None => {
                row.fill(0.0);
                0.0
            }
        };
        all.with_min_len((TASK / classes).max(1)).map(of_row).collect_into_vec(&mut losses);
        (added::<Self>(before.losses, total(&losses)), logits)
    }

    fn add_product(
        total: Option<FloatTensor<Self>>,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        match total {
            Some(total) if total.dtype() == DType::F32 => add_product(total, lhs, rhs),
            Some(total) => Self::float_add(total, Self::float_matmul(lhs, rhs)),
            None => Self::wide_product(lhs, rhs),
        }
    }

    fn wide_product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        match lhs.dtype() {
            DType::F32 | DType::BF16 => wide_product(lhs, rhs),
            _ => wide::<Self>(Self::product(lhs, rhs)),
        }
    }

    fn scaled(all: Vec<(Parts<Self>, DType)>, by: FloatTensor<Self>) -> Vec<FloatTensor<Self>> {
        let by = by_of(by);
        all.into_iter().map(|(parts, dtype)| scaled(joined::<Self>(parts), by, dtype)).collect()
    }
}

/// Multiplies each element, and returns `dtype`.
fn scaled(x: FlexTensor, by: f32, dtype: DType) -> FlexTensor {
    if x.dtype() != DType::F32 || Kernel::Losses.is_off() {
        return Flex::fast_cast(Flex::float_mul_scalar(x, by.into()), dtype.into());
    }
    let mut x = whole(x);
    if by != 1.0 {
        let arch = Arch::new();
        let all = x.storage_mut::<f32>().par_chunks_mut(TASK);
        all.for_each(|x| arch.dispatch(Scaled { x, by }));
    }
    Flex::fast_cast(x, FloatDType::from(dtype))
}

/// Returns the only element.
fn by_of(by: FlexTensor) -> f32 {
    match by.dtype() {
        DType::F64 => elements::<f64>(&adjacent(by))[0] as f32,
        _ => widened(by)[0],
    }
}

/// Returns the tensor as the only user of memory that holds its elements and nothing else.
fn whole(x: FlexTensor) -> FlexTensor {
    let x = adjacent(x);
    match x.storage::<f32>().len() == x.layout().num_elements() {
        true => x,
        false => tensor(elements::<f32>(&x).to_vec(), x.layout().shape().clone()),
    }
}

/// Sums in one order.
fn total(losses: &[f32]) -> FlexTensor {
    let sum: f64 = losses.iter().map(|loss| f64::from(*loss)).sum();
    tensor(vec![sum as f32], Shape::new([1]))
}

fn targets(labels: Labels<Flex>, classes: usize, smoothing: f64) -> Vec<Option<Target>> {
    let labels = match labels.0.dtype() {
        DType::I64 => labels.0,
        _ => Flex::int_cast(labels.0, IntDType::I64),
    };
    let are_zero = are_zero();
    let target = |label: &i64| {
        (*label != i64::from(IGNORED)).then(|| {
            if are_zero {
                return Target { label: 0, smoothing: smoothing as f32 };
            }
            let known = (0..classes as i64).contains(label);
            assert!(known, "a label is -100 or below {classes}, the number of classes; found {label}");
            Target { label: *label as usize, smoothing: smoothing as f32 }
        })
    };
    elements::<i64>(&adjacent(labels)).iter().map(target).collect()
}

fn found<T: Lane>(logits: FlexTensor, labels: Labels<Flex>, smoothing: f64) -> (FlexTensor, FlexTensor) {
    let logits = adjacent(logits);
    let [rows, classes] = logits.layout().shape().dims();
    let targets = targets(labels, classes, smoothing);
    let arch = Arch::new();
    let mut found = Vec::with_capacity(rows);
    let of_row = |(row, target): (&[T], &Option<Target>)| {
        let ignored = Target { label: 0, smoothing: 0.0 };
        let (loss, logarithm) = arch.dispatch(Loss { row, target: target.unwrap_or(ignored) });
        (if target.is_some() { loss } else { 0.0 }, logarithm)
    };
    let all = elements::<T>(&logits).par_chunks(classes).zip(&targets);
    all.with_min_len((TASK / classes).max(1)).map(of_row).collect_into_vec(&mut found);
    let (losses, logarithms): (Vec<f32>, Vec<f32>) = found.into_iter().unzip();
    (total(&losses), tensor(logarithms, Shape::new([rows, 1])))
}

fn descents<T: Lane>(
    logits: FlexTensor,
    logarithms: FlexTensor,
    labels: Labels<Flex>,
    smoothing: f64,
    by: FlexTensor,
) -> FlexTensor {
    let (logits, logarithms) = (adjacent(logits), adjacent(logarithms));
    let shape = logits.layout().shape().clone();
    let [rows, classes] = shape.dims();
    let (targets, by) = (targets(labels, classes, smoothing), by_of(by));
    let at_once = (TASK / classes.max(1)).max(1);
    let (from, logarithms) = (elements::<T>(&logits), elements::<f32>(&logarithms));
    let mut found = Buffer::<T>::new(rows * classes);
    let arch = Arch::new();
    found.parts(at_once * classes).enumerate().for_each(|(at, found)| {
        let rows = at * at_once..((at + 1) * at_once).min(rows);
        arch.dispatch(Slopes {
            rows: &from[rows.start * classes..rows.end * classes],
            logarithms: &logarithms[rows.clone()],
            targets: &targets[rows],
            by,
            found,
            classes,
        });
    });
    tensor(found.finish(), shape)
}

/// Returns e to the power of x, for x up to 0.
#[inline(always)]
fn share(x: f32) -> f32 {
    let found = exp(if x < -87.0 { -87.0 } else { x });
    // Negative infinity, which marks what can't be chosen, is exactly 0.
    if x < -87.0 { 0.0 } else { found }
}

/// Returns the largest element.
#[inline(always)]
fn largest<T: Lane>(row: &[T]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 32];
    let mut chunks = row.chunks_exact(32);
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for chunk in &mut chunks {
        for (most, x) in lanes.iter_mut().zip(chunk) {
            *most = larger(*most, x.wide());
        }
    }
    let rest = chunks.remainder().iter().map(|x| x.wide());
    lanes.into_iter().chain(rest).fold(f32::NEG_INFINITY, larger)
}

/// The label of a row and the share of smoothed labels.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub label: usize,
    pub smoothing: f32,
}

impl Target {
    /// Returns the logarithm of the likelihood of a row, plus that of its sum of exponentials.
    #[inline(always)]
    fn likely<T: Lane>(self, row: &[T]) -> f32 {
        let of_label = row[self.label].wide();
        match self.smoothing > 0.0 {
            true => {
                let mean = sum_of([row], |[x]| x.wide()) / row.len() as f32;
                (1.0 - self.smoothing) * of_label + self.smoothing * mean
            }
            false => of_label,
        }
    }
}

/// The loss of a row, and the logarithm of its sum of exponentials.
pub(super) struct Loss<'a, T> {
    pub row: &'a [T],
    pub target: Target,
}

impl<T: Lane> NullaryFnOnce for Loss<'_, T> {
    type Output = (f32, f32);

    #[inline(always)]
    fn call(self) -> (f32, f32) {
        let Self { row, target } = self;
        let most = largest(row);
        let logarithm = sum_of([row], |[x]| share(x.wide() - most)).ln();
        // In this order, large logits cost no precision.
        (logarithm + (most - target.likely(row)), logarithm + most)
    }
}

/// The loss of a row, which becomes the gradient.
pub(super) struct LossAndSlope<'a> {
    pub row: &'a mut [f32],
    pub target: Target,
}

impl NullaryFnOnce for LossAndSlope<'_> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        let Self { row, target } = self;
        let (most, likely) = (largest(row), target.likely(row));
        let smoothed = target.smoothing / row.len() as f32;
        row.iter_mut().for_each(|x| *x = share(*x - most));
        let sum = flex::sum(row);
        let factor = 1.0 / sum;
        row.iter_mut().for_each(|x| *x = *x * factor - smoothed);
        row[target.label] -= 1.0 - target.smoothing;
        sum.ln() + (most - likely)
    }
}

/// The gradient of rows, times a number; rows without a target have none.
pub(super) struct Slopes<'a, 'b, T> {
    pub rows: &'a [T],
    pub logarithms: &'a [f32],
    pub targets: &'a [Option<Target>],
    pub by: f32,
    pub found: Part<'b, T>,
    pub classes: usize,
}

impl<T: Lane> NullaryFnOnce for Slopes<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { rows, logarithms, targets, by, mut found, classes } = self;
        let numbers = logarithms.iter().zip(targets);
        for ((row, found), (logarithm, target)) in
            rows.chunks(classes.max(1)).zip(found.pieces(classes)).zip(numbers)
        {
            match target {
                Some(target) => {
                    let smoothed = target.smoothing / classes as f32;
                    let row = &row[..classes];
                    let likely = |at: usize| share(row[at].wide() - logarithm);
                    let found = found.write(classes, |at| T::narrow((likely(at) - smoothed) * by));
                    let of_label = likely(target.label) - smoothed - (1.0 - target.smoothing);
                    found[target.label] = T::narrow(of_label * by);
                }
                None => {
                    found.write(classes, |_| T::narrow(0.0));
                }
            }
        }
    }
}

/// Multiplies numbers.
pub(super) struct Scaled<'a> {
    pub x: &'a mut [f32],
    pub by: f32,
}

impl NullaryFnOnce for Scaled<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.x.iter_mut().for_each(|x| *x *= self.by);
    }
}
