//! What an optimizer does to one element, and what it is done to.

use burn::tensor::Tensor;

#[cfg(feature = "flex")]
use super::kernel::Update;

/// The arithmetic of one update: an equation per element, over `N` moments, in f32.
pub(super) trait Rule<const N: usize>: Copy + Send + Sync {
    /// The new parameter and the new moments.
    ///
    /// A moment that does not exist yet is given as -0.0, which is zero in every sum.
    #[cfg_attr(not(feature = "flex"), allow(dead_code))] // Burn's own steps take other backends.
    fn element(&self, param: f32, grad: f32, moments: [f32; N]) -> (f32, [f32; N]);

    /// [`Update::run`] of this rule.
    ///
    /// Each rule says so itself, without generics, and is never inlined: the loops are then compiled
    /// with this crate, and not, perhaps unoptimised, with the program that knows the tensors' ranks.
    #[cfg(feature = "flex")]
    fn run(&self, update: Update<'_, N>, fresh: bool);
}

/// A parameter and what updates it. Before the first update there are no moments.
pub(super) struct Parts<const D: usize, const N: usize> {
    pub param: Tensor<D>,
    pub grad: Tensor<D>,
    pub moments: Option<[Tensor<D>; N]>,
}
