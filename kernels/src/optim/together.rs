//! Updates that are launched together, and the copies that they write.

use burn::tensor::{FloatDType, Tensor};

use super::fused;
use super::replicas::Replicas;
use super::rule::{Parts, Rule};
use crate::off::Kernel;

/// The updates of one model, and all that these need to know of each other: in which dtype they also write replicas, and
/// what decides whether they are made.
///
/// The results of a [`step`](Self::step) have no values before the [launch](Self::launch), unless they are on the CPU.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
/// use firebrick_kernels::optim::{Parts, Real, Rule, Together, Update, take};
///
/// # #[derive(Clone, Copy)]
/// # struct Descent;
/// # impl Rule<0, 1> for Descent {
/// #     fn constants(&self) -> [f32; 1] {
/// #         [1e-3]
/// #     }
/// #     fn element<R: Real>([rate]: [R; 1], param: R, grad: R, []: [R; 0]) -> (R, [R; 0]) {
/// #         (param - rate * grad, [])
/// #     }
/// #     fn run(&self, update: Update<'_, 0>, fresh: bool) {
/// #         update.run(*self, fresh);
/// #     }
/// # }
/// let [param, grad] = [0.1, 2.0].map(|x| Tensor::<1>::full([4], x, &Device::flex()));
/// let mut together = Together::new().writing(FloatDType::BF16);
/// let updated = together.step(&Descent, Parts { param, grad, moments: Some([]) });
/// let Ok((param, [])) = updated else { panic!("Flex updates f32 in one pass") };
/// let replicas = together.launch().expect("they are asked for");
/// let expected = param.clone().cast(FloatDType::BF16).into_data();
/// assert_eq!(replicas.of(&param).expect("the parameter was updated").into_data(), expected);
///
/// // Like the cast of the strategy `Amp`, this one takes the copy if there is one.
/// let (half, taken) = replicas.lend(|| take(&param, FloatDType::BF16));
/// assert_eq!((half.expect("it is lent").into_data(), taken), (expected, 1));
/// ```
#[derive(Default)]
#[must_use = "the updates are made when they are launched"]
pub struct Together {
    replicas: Option<Replicas>,
    waiting: usize,
    #[cfg(feature = "cube")]
    pending: super::cube::Pending,
}

impl Together {
    /// Creates a scope without updates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has each step of an f32 parameter also write a copy in `dtype`, in the same pass. The copy equals a cast of the new
    /// parameter, without reading it again.
    ///
    /// `dtype` is bf16 or f16; with any other dtype, or `None`, nothing is written. The copies also hold the parameters that
    /// they come from: drop them before the next update, or it copies the parameters.
    pub fn writing(self, dtype: impl Into<Option<FloatDType>>) -> Self {
        Self { replicas: dtype.into().map(Replicas::new), ..self }
    }

    /// Lets the device decide whether the updates are made: if `guard`, `[1]`, is infinite or NaN, the parameters and moments
    /// keep their values, and replicas are copies of these. Nothing waits for the guard. Without one, they are made.
    ///
    /// Only updates that [wait](Self::waiting) for the launch ask the guard, and only moments that exist keep their values.
    pub fn if_finite(self, guard: impl Into<Option<Tensor<1>>>) -> Self {
        #[cfg(feature = "cube")]
        return Self { pending: self.pending.if_finite(guard.into()), ..self };
        #[cfg(not(feature = "cube"))]
        {
            let _ = guard;
            self
        }
    }

    /// Computes one update in one pass: returns the new parameter and moments, in the parameter's dtype. On a GPU the kernel
    /// is launched with those of the other updates of the same device. On the CPU, each update runs at once.
    ///
    /// # Errors
    ///
    /// The inputs, if the pass does not support them: see [`step`](super::step).
    #[allow(clippy::result_large_err)] // The error is the input, which the caller takes apart at once.
    pub fn step<const D: usize, const N: usize, const C: usize, R: Rule<N, C>>(
        &mut self,
        rule: &R,
        parts: Parts<D, N>,
    ) -> Result<(Tensor<D>, [Tensor<D>; N]), Parts<D, N>> {
        if Kernel::Updates.is_off() {
            return Err(parts);
        }
        #[cfg(feature = "cube")]
        let parts = match super::cube::step(rule, parts, &mut self.pending, self.replicas.as_mut()) {
            Ok((updated, waits)) => {
                self.waiting += usize::from(waits);
                return Ok(updated);
            }
            Err(parts) => parts,
        };
        fused::step(rule, parts, self.replicas.as_mut())
    }

    /// Returns the number of updates that wait for the launch: none on the CPU.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Launches the kernels, a few for a whole model, and returns the copies if they were [asked for](Self::writing).
    pub fn launch(self) -> Option<Replicas> {
        #[cfg(feature = "cube")]
        self.pending.launch();
        self.replicas
    }
}
