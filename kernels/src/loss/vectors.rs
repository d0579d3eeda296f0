//! One row of logits, which the compiler turns into vectors of the processor that [`pulp`] detects. They use no fused
//! multiply-add, so each result is the same on all processors.

use pulp::NullaryFnOnce;

use crate::flex::{self, Lane, Part, sum_of};
use crate::gelu::exp;

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
