//! The update of one element, and the tensors that it applies to.

use burn::tensor::Tensor;

use super::update::Update;

/// The arithmetic of one update: an equation per element, over `N` moments, in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::optim::{Parts, Rule, Update, step};
///
/// /// Gradient descent with momentum.
/// #[derive(Clone, Copy)]
/// struct Momentum { rate: f32 }
///
/// impl Rule<1> for Momentum {
///     #[inline(always)]
///     fn element(&self, param: f32, grad: f32, [m]: [f32; 1]) -> (f32, [f32; 1]) {
///         let m = 0.5 * m + grad;
///         (param - self.rate * m, [m])
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
pub trait Rule<const N: usize>: Copy + Send + Sync {
    /// Returns the new parameter and the new moments.
    ///
    /// A moment that does not exist yet is -0.0, which is neutral in every sum.
    fn element(&self, param: f32, grad: f32, moments: [f32; N]) -> (f32, [f32; N]);

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
