//! Rows of logits on all cores.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, IntDType, Shape, bf16, f16};
use pulp::Arch;
use rayon::prelude::*;

use super::IGNORED;
use super::rows::{
    Before, Labels, LossRows, Parts, added, biased, capped as composed_cap, capped_slopes as composed_slopes,
    joined, losses, losses_and_slopes, slopes,
};
use super::vectors::{Loss, LossAndSlope, Scaled, Slopes, Target};
use crate::cap::{capped, slope_of_capped};
use crate::elements::mapped;
use crate::flex::{Buffer, Lane, TASK, adjacent, elements, tensor, widened};
use crate::half::{HalfOps, wide};
use crate::off::Kernel;
use crate::product::{ProductOps, add_product, has_dots, wide_product};

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
    let target = |label: &i64| {
        (*label != i64::from(IGNORED)).then(|| {
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
