//! Norms over rows on all cores.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, bf16, f16};
use pulp::Arch;
use rayon::prelude::*;

use super::rows::{
    Gradients, NormKind, NormRows, Normed, Statistics, Upstream, WantedGradients, gradients, values,
};
use super::vectors::{Slopes, Values};
use crate::flex::{Buffer, Lane, TASK, adjacent, elements, tensor, widened};
use crate::off::Kernel;

/// Parts of a gradient's rows. Each has sums of its own for the gradients of scale and bias, which are then added in
/// order: the shape alone decides how, so that results do not depend on the number of threads.
const PARTS: usize = 32;

impl NormRows for Flex {
    fn norm_rows(
        x: FloatTensor<Self>,
        y: Option<FloatTensor<Self>>,
        scale: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        kind: NormKind,
    ) -> Normed<Self> {
        match x.dtype() {
            _ if x.layout().num_elements() == 0 || Kernel::Norms.is_off() => {
                values::<Self>(x, y, scale, bias, kind)
            }
            DType::F32 => normed::<f32>(x, y, scale, bias, kind),
            DType::BF16 => normed::<bf16>(x, y, scale, bias, kind),
            DType::F16 => normed::<f16>(x, y, scale, bias, kind),
            _ => values::<Self>(x, y, scale, bias, kind),
        }
    }

    fn norm_gradients(upstream: Upstream<Self>, wanted: WantedGradients) -> Gradients<Self> {
        match upstream.sum.dtype() {
            _ if upstream.sum.layout().num_elements() == 0 || Kernel::Norms.is_off() => {
                gradients::<Self>(upstream, wanted)
            }
            DType::F32 => slopes::<f32>(upstream, wanted),
            DType::BF16 => slopes::<bf16>(upstream, wanted),
            DType::F16 => slopes::<f16>(upstream, wanted),
            _ => gradients::<Self>(upstream, wanted),
        }
    }
}

fn normed<T: Lane>(
    x: FlexTensor,
    y: Option<FlexTensor>,
    scale: FlexTensor,
    bias: Option<FlexTensor>,
    kind: NormKind,
) -> Normed<Flex> {
    let (x, y) = (adjacent(x), y.map(adjacent));
    let (scale, bias) = (widened(scale), bias.map(widened));
    let shape = x.layout().shape().clone();
    let width = scale.len();
    let rows = shape.num_elements() / width.max(1);
    let at_once = (TASK / width.max(1)).max(1);
    let length = at_once * width;

    let sums = y.as_ref().map(|_| Buffer::<T>::new(rows * width));
    let (mut sums, mut normed) = (sums, Buffer::<T>::new(rows * width));
    let (mut mean, mut inverse) = (Buffer::<f32>::new(rows), Buffer::<f32>::new(rows));
    let (from, plus) = (elements::<T>(&x), y.as_ref().map(elements::<T>));
    let arch = Arch::new();
    let run = |sum, (at, ((normed, mean), inverse)): (usize, _)| {
        let rows_of =
            |all: &'_ [T]| -> std::ops::Range<usize> { at * length..((at + 1) * length).min(all.len()) };
        arch.dispatch(Values {
            x: &from[rows_of(from)],
            y: plus.map(|plus| &plus[rows_of(plus)]),
            scale: &scale,
            bias: bias.as_deref(),
            kind,
            sum,
            normed,
            mean,
            inverse,
        });
    };
    let parts = normed.parts(length).zip(mean.parts(at_once)).zip(inverse.parts(at_once)).enumerate();
    match &mut sums {
        Some(sums) => parts.zip(sums.parts(length)).for_each(|(parts, sum)| run(Some(sum), parts)),
        None => parts.for_each(|parts| run(None, parts)),
    }
    let mut of_rows = shape.clone();
    let last = of_rows.num_dims() - 1;
    of_rows[last] = 1;
    let statistics = Statistics {
        mean: kind.is_centered().then(|| tensor(mean.finish(), of_rows.clone())),
        inverse: tensor(inverse.finish(), of_rows),
    };
    let sum = match sums {
        Some(sums) => tensor(sums.finish(), shape.clone()),
        None => x,
    };
    Normed { sum, normed: tensor(normed.finish(), shape), statistics }
}

fn slopes<T: Lane>(upstream: Upstream<Flex>, wanted: WantedGradients) -> Gradients<Flex> {
    let Upstream { sum, statistics: Statistics { mean, inverse }, scale, grad, of_sum } = upstream;
    let (sum, grad, of_sum) = (adjacent(sum), adjacent(grad), of_sum.map(adjacent));
    let scale = widened(scale);
    let shape = sum.layout().shape().clone();
    let width = scale.len();
    let rows = shape.num_elements() / width.max(1);
    let of_part = rows.div_ceil(PARTS).max((TASK / width.max(1)).max(1));
    let length = of_part * width;

    let mut found = wanted.sum.then(|| Buffer::<T>::new(rows * width));
    let (x, upper) = (elements::<T>(&sum), elements::<T>(&grad));
    let own = of_sum.as_ref().map(elements::<T>);
    let (mean, inverse) = (mean.as_ref().map(elements::<f32>), elements::<f32>(&inverse));
    let arch = Arch::new();
    let run = |at: usize, found| {
        let of_rows = at * of_part..((at + 1) * of_part).min(rows);
        let range = of_rows.start * width..of_rows.end * width;
        arch.dispatch(Slopes {
            sum: &x[range.clone()],
            grad: &upper[range.clone()],
            of_sum: own.map(|own| &own[range.clone()]),
            mean: mean.map(|mean| &mean[of_rows.clone()]),
            inverse: &inverse[of_rows.clone()],
            scale: &scale,
            found,
            of_parameters: wanted.scale || wanted.bias,
        })
    };
    let mut sums = Vec::new();
    match &mut found {
        Some(found) => {
            let parts = found.parts(length).enumerate();
            parts.map(|(at, found)| run(at, Some(found))).collect_into_vec(&mut sums);
        }
        None => {
            let parts = (0..rows.div_ceil(of_part)).into_par_iter();
            parts.map(|at| run(at, None)).collect_into_vec(&mut sums);
        }
    }
    let total = |which: usize| {
        let mut total = vec![0.0; width];
        for part in &sums {
            total.iter_mut().zip(&part[which]).for_each(|(total, part)| *total += part);
        }
        tensor(total, Shape::new([width]))
    };
    Gradients {
        scale: wanted.scale.then(|| total(0)),
        bias: wanted.bias.then(|| total(1)),
        sum: found.map(|found| tensor(found.finish(), shape)),
    }
}
