//! Rows of a norm, which the compiler turns into vectors of the processor that [`pulp`] detects. They use no fused
//! multiply-add, so each result is the same on all processors.

use pulp::NullaryFnOnce;

use super::rows::NormKind;
use crate::flex::{self, Lane, Part, dot, sum_of};

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
