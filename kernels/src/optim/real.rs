//! The numbers that an update computes with.

use std::ops::{Add, Div, Mul, Sub};

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
