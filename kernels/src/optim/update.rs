//! The operands of one pass over memory.

use super::floats::{Floats, FloatsMut};

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
