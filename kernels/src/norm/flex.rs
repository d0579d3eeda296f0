//! Norms over rows on all cores.
//!
//! Rows of a norm, which the compiler turns into vectors of the processor that [`pulp`] detects. They use no fused
//! multiply-add, so each result is the same on all processors.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, bf16, f16};
use bytemuck::zeroed_vec;
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::rows::{
    Gradients, NormKind, NormRows, Normed, Statistics, Upstream, WantedGradients, gradients, values,
};
use crate::flex::{self, Buffer, Lane, Part, TASK, adjacent, dot, elements, sum_of, tensor, widened};
use crate::off::Kernel;
use crate::zero_results::are_zero;

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
    let mut of_rows = shape.clone();
    let last = of_rows.num_dims() - 1;
    of_rows[last] = 1;
    if are_zero() {
        let all = || tensor(zeroed_vec::<T>(rows * width), shape.clone());
        let each = || tensor(zeroed_vec::<f32>(rows), of_rows.clone());
        let sum = if y.is_some() { all() } else { x };
        let (normed, mean) = (all(), kind.is_centered().then(each));
        return Normed { sum, normed, statistics: Statistics { mean, inverse: each() } };
    }
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
    if are_zero() {
        let of_width = || tensor(zeroed_vec::<f32>(width), Shape::new([width]));
        return Gradients {
            sum: wanted.sum.then(|| tensor(zeroed_vec::<T>(rows * width), shape)),
            scale: wanted.scale.then(of_width),
            bias: wanted.bias.then(of_width),
        };
    }
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

/// Values of some rows.
pub(super) struct Values<'a, 'b, T> {
    pub x: &'a [T],
    pub y: Option<&'a [T]>,
    pub scale: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub kind: NormKind,
    pub sum: Option<Part<'b, T>>,
    pub normed: Part<'b, T>,
    pub mean: Part<'b, f32>,
    pub inverse: Part<'b, f32>,
}

impl<T: Lane> NullaryFnOnce for Values<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, y, scale, bias, kind, sum: mut sums, mut normed, mut mean, mut inverse } = self;
        let (width, epsilon) = (scale.len(), kind.epsilon() as f32);
        let share = 1.0 / width as f32;
        let mut wide = vec![0.0; width];
        // Slices of one length leave no bounds to check in loops over them.
        let (wide, scale, bias) = (&mut wide[..width], &scale[..width], bias.map(|bias| &bias[..width]));
        let mut sums = sums.as_mut().map(|sums| sums.pieces(width));
        let statistics = mean.pieces(1).zip(inverse.pieces(1));
        for (row, (normed, (mean, inverse))) in normed.pieces(width).zip(statistics).enumerate() {
            let x = &x[row * width..][..width];
            match (y, &mut sums) {
                (Some(y), Some(sums)) => {
                    let y = &y[row * width..][..width];
                    let sum = sums.next().expect("the sum has as many rows as its terms");
                    let sum = sum.write(width, |at| T::narrow(x[at].wide() + y[at].wide()));
                    wide.iter_mut().zip(sum).for_each(|(wide, sum)| *wide = sum.wide());
                }
                _ => wide.iter_mut().zip(x).for_each(|(wide, x)| *wide = x.wide()),
            }
            let middle = if kind.is_centered() { flex::sum(wide) * share } else { 0.0 };
            let square = sum_of([&*wide], |[x]| (x - middle) * (x - middle)) * share;
            let factor = 1.0 / (square + epsilon).sqrt();
            mean.write(1, |_| middle);
            inverse.write(1, |_| factor);
            match bias {
                Some(bias) => {
                    normed.write(width, |at| T::narrow((wide[at] - middle) * factor * scale[at] + bias[at]));
                }
                None => {
                    normed.write(width, |at| T::narrow((wide[at] - middle) * factor * scale[at]));
                }
            }
        }
    }
}

/// Gradients of some rows.
pub(super) struct Slopes<'a, 'b, T> {
    pub sum: &'a [T],
    pub grad: &'a [T],
    pub of_sum: Option<&'a [T]>,
    pub mean: Option<&'a [f32]>,
    pub inverse: &'a [f32],
    pub scale: &'a [f32],
    /// The gradient of the sum, if it is wanted.
    pub found: Option<Part<'b, T>>,
    /// Whether the gradients of scale and bias are wanted.
    pub of_parameters: bool,
}

impl<T: Lane> NullaryFnOnce for Slopes<'_, '_, T> {
    /// The sums over the rows of the gradients of scale and bias.
    type Output = [Vec<f32>; 2];

    #[inline(always)]
    fn call(self) -> [Vec<f32>; 2] {
        let Self { sum, grad, of_sum, mean, inverse, scale, mut found, of_parameters } = self;
        let width = scale.len();
        let share = 1.0 / width as f32;
        let (mut normal, mut scaled) = (vec![0.0; width], vec![0.0; width]);
        let (normal, scaled, scale) = (&mut normal[..width], &mut scaled[..width], &scale[..width]);
        let length = if of_parameters { width } else { 0 };
        let (mut of_scale, mut of_bias) = (vec![0.0; length], vec![0.0; length]);
        let mut found = found.as_mut().map(|found| found.pieces(width));
        for (row, factor) in inverse.iter().enumerate() {
            let middle = mean.map_or(0.0, |mean| mean[row]);
            let (x, grad) = (&sum[row * width..][..width], &grad[row * width..][..width]);
            normal.iter_mut().zip(x).for_each(|(normal, x)| *normal = (x.wide() - middle) * factor);
            if let Some(found) = &mut found {
                for at in 0..width {
                    scaled[at] = grad[at].wide() * scale[at];
                }
                let (plain, along) = (flex::sum(scaled), dot(scaled, normal));
                let plain = if mean.is_some() { plain * share } else { 0.0 };
                let along = along * share;
                let found = found.next().expect("the gradient has as many rows as the sum");
                let (scaled, normal) = (&*scaled, &*normal);
                let of_norm = |at: usize| (scaled[at] - plain - normal[at] * along) * factor;
                match of_sum {
                    Some(own) => {
                        let own = &own[row * width..][..width];
                        found.write(width, |at| T::narrow(of_norm(at) + own[at].wide()));
                    }
                    None => {
                        found.write(width, |at| T::narrow(of_norm(at)));
                    }
                }
            }
            if of_parameters {
                let (of_scale, of_bias) = (&mut of_scale[..width], &mut of_bias[..width]);
                for at in 0..width {
                    let grad = grad[at].wide();
                    of_scale[at] += grad * normal[at];
                    of_bias[at] += grad;
                }
            }
        }
        [of_scale, of_bias]
    }
}
