//! The update of one element, and the tensors that it applies to.

use burn::tensor::Tensor;

#[cfg(feature = "flex")]
use super::kernel::Update;

/// The arithmetic of one update: an equation per element, over `N` moments, in f32.
pub(super) trait Rule<const N: usize>: Copy + Send + Sync {
    /// Returns the new parameter and the new moments.
    ///
    /// A moment that does not exist yet is -0.0, which is neutral in every sum.
    #[cfg_attr(not(feature = "flex"), allow(dead_code))] // Other backends use Burn's own step.
    fn element(&self, param: f32, grad: f32, moments: [f32; N]) -> (f32, [f32; N]);

    /// Calls [`Update::run`] with this rule.
    ///
    /// Each rule implements it without generics, and never inlined: the loops are then compiled with this crate, and
    /// not with the program that knows the tensors' ranks, which may be unoptimized.
    #[cfg(feature = "flex")]
    fn run(&self, update: Update<'_, N>, fresh: bool);
}

/// The parts of an update. Before the first update there are no moments.
pub(super) struct Parts<const D: usize, const N: usize> {
    pub param: Tensor<D>,
    pub grad: Tensor<D>,
    pub moments: Option<[Tensor<D>; N]>,
}
