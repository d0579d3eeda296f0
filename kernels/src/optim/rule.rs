//! The update of one element, the numbers that it computes with, and the tensors and slices that it applies to.

use std::ops::{Add, Div, Mul, Sub};

use burn::tensor::Tensor;

use super::floats::{Floats, FloatsMut};

/// The arithmetic of one update: an equation per element, over `N` moments and `C` constants, in f32.
///
/// The equation is written once, over any [`Real`]. On the CPU these are floats; for a GPU, the equation is run once on
/// symbols, which become a kernel.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::optim::{Parts, Real, Rule, Update, step};
///
/// /// Gradient descent with momentum.
/// #[derive(Clone, Copy)]
/// struct Momentum { rate: f32 }
///
/// impl Rule<1, 2> for Momentum {
///     fn constants(&self) -> [f32; 2] {
///         [self.rate, 0.5]
///     }
///
///     #[inline(always)]
///     fn element<R: Real>([rate, beta]: [R; 2], param: R, grad: R, [m]: [R; 1]) -> (R, [R; 1]) {
///         let m = beta * m + grad;
///         (param - rate * m, [m])
///     }
///
///     #[inline(never)]
///     fn run(&self, update: Update<'_, 1>, fresh: bool) {
///         update.run(*self, fresh);
///     }
/// }
///
/// let [param, grad] = [1.0, 2.0].map(|x| Tensor::<1>::full([4], x, &Device::flex()));
/// let mut parts = Parts { param, grad: grad.clone(), moments: None };
/// for expected in [0.75, 0.375] {
///     let Ok((param, moments)) = step(&Momentum { rate: 0.125 }, parts) else { panic!("Flex updates f32") };
///     assert_eq!(param.clone().mean().into_scalar::<f32>(), expected);
///     parts = Parts { param, grad: grad.clone(), moments: Some(moments) };
/// }
/// ```
pub trait Rule<const N: usize, const C: usize>: Copy + Send + Sync + 'static {
    /// Returns the numbers of this update, the same for all elements: rates, decays and corrections.
    fn constants(&self) -> [f32; C];

    /// Returns the new parameter and the new moments.
    ///
    /// A moment that does not exist yet is -0.0, which is neutral in every sum.
    fn element<R: Real>(constants: [R; C], param: R, grad: R, moments: [R; N]) -> (R, [R; N]);

    /// Calls [`Update::run`] with this rule.
    ///
    /// Implement it without generics, and never inlined: the loops are then compiled with the rule's crate, and not with
    /// the program that knows the tensors' ranks, which may be unoptimized.
    fn run(&self, update: Update<'_, N>, fresh: bool);
}

/// The parts of an update. Before the first update there are no moments.
#[derive(Clone, Debug)]
pub struct Parts<const D: usize, const N: usize> {
    /// The parameter, outside autodiff.
    pub param: Tensor<D>,
    /// Its gradient.
    pub grad: Tensor<D>,
    /// The moments of earlier updates.
    pub moments: Option<[Tensor<D>; N]>,
}

/// The operands of one pass: slices of equal length, of a parameter with `N` moments.
pub struct Update<'a, const N: usize> {
    pub(super) param: FloatsMut<'a>,
    pub(super) grad: Floats<'a>,
    pub(super) moments: [FloatsMut<'a>; N],
    /// Also receives the new parameter, rounded.
    pub(super) replica: Option<FloatsMut<'a>>,
}

impl<const N: usize> Update<'_, N> {
    /// Returns the number of elements.
    pub(super) fn len(&self) -> usize {
        self.param.len()
    }

    /// Splits off the first `length` elements.
    #[inline(always)]
    pub(super) fn take(&mut self, length: usize) -> Self {
        Self {
            param: self.param.take(length),
            grad: self.grad.take(length),
            moments: self.moments.each_mut().map(|moment| moment.take(length)),
            replica: self.replica.as_mut().map(|replica| replica.take(length)),
        }
    }
}

/// A number in the equation of an update: an f32 on the CPU, a symbol in the kernel of a GPU. Each operation is rounded to
/// f32; a GPU may fuse a product with a sum.
pub trait Real:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Returns the square root.
    fn sqrt(self) -> Self;

    /// Returns -1, 0 or 1, the sign of the number; 0 for NaN.
    fn sign(self) -> Self;

    /// Returns `then` if this number is positive, else `otherwise`. Both are computed.
    fn if_positive(self, then: Self, otherwise: Self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn sign(self) -> Self {
        let positive = if self > 0.0 { 1.0 } else { 0.0 };
        if self < 0.0 { -1.0 } else { positive }
    }

    #[inline(always)]
    fn if_positive(self, then: Self, otherwise: Self) -> Self {
        if self > 0.0 { then } else { otherwise }
    }
}
