//! The tensors of one update, and which updates one kernel can compute.

use std::any::TypeId;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use crate::cube::{Spec, contiguous, empty};
use crate::optim::rule::Rule;

/// One update whose kernel is not launched yet. Parameter and moments are changed in place.
pub struct Job {
    pub param: CubeTensor,
    pub grad: CubeTensor,
    pub moments: Vec<CubeTensor>,
    pub replica: Option<CubeTensor>,
    pub kind: LaunchKey,
    /// The rule's numbers.
    pub constants: Vec<f32>,
    /// Launches the kernel for jobs of this kind, which change nothing if the second argument is not finite.
    pub launch: Launch,
}

/// Launches jobs of one kind, under a guard.
pub type Launch = fn(&[&Job], Option<&CubeTensor>);

/// What the jobs of one launch have in common.
#[derive(Clone, PartialEq)]
pub struct LaunchKey {
    rule: TypeId,
    /// The dtypes of parameter, gradient and replica.
    dtypes: [Option<DType>; 3],
    /// Whether the content of the moments is taken as zero.
    pub fresh: bool,
}

impl Job {
    /// Takes the parameter, its gradient and its moments, unless these are `fresh`. Counts the tensors that it copies,
    /// because something else holds their memory. `launch` launches the rule's kernel.
    pub fn new<R: Rule<N, C>, const N: usize, const C: usize>(
        rule: &R,
        inputs: Vec<CubeTensor>,
        replica: &[Spec],
        fresh: bool,
        copies: &AtomicU64,
        launch: Launch,
    ) -> Self {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("as many inputs as an update has");
        let writable = |tensor: CubeTensor| {
            let tensor = match tensor.is_contiguous() {
                true if tensor.handle.can_mut() => return tensor,
                // On CUDA, Burn's copy stands in padded rows.
                true => contiguous(tensor.copy()),
                false => contiguous(tensor),
            };
            copies.fetch_add(1, Ordering::Relaxed);
            tensor
        };
        let (param, grad) = (writable(next()), contiguous(next()));
        let moment = |_| match fresh {
            true => empty(&param, param.meta.shape().clone(), param.dtype),
            false => writable(next()),
        };
        let moments: Vec<_> = (0..N).map(moment).collect();
        let replica = replica.first().map(|spec| empty(&param, spec.shape.clone(), spec.dtype));
        let dtypes = [Some(param.dtype), Some(grad.dtype), replica.as_ref().map(|replica| replica.dtype)];
        let kind = LaunchKey { rule: TypeId::of::<R>(), dtypes, fresh };
        Self { param, grad, moments, replica, kind, constants: rule.constants().into(), launch }
    }

    /// Returns what the jobs of one launch have in common: their kind, and their constants, unless the device's kernel reads
    /// them for each.
    pub fn alike(&self) -> (&LaunchKey, Option<&[f32]>) {
        (&self.kind, (!has_constants_of_each(&self.param)).then_some(&self.constants))
    }

    /// Returns what the update writes: the parameter, its moments, and the replica if there is one.
    pub fn outputs(&self) -> Vec<CubeTensor> {
        [&self.param].into_iter().chain(&self.moments).chain(&self.replica).cloned().collect()
    }

    /// Returns the parameter, its gradient, its moments and the replica, if there is one.
    pub fn tensors(&self) -> impl Iterator<Item = &CubeTensor> {
        [&self.param, &self.grad].into_iter().chain(&self.moments).chain(&self.replica)
    }
}

/// Returns whether the kernel of a device reads other constants for each parameter.
fn has_constants_of_each(param: &CubeTensor) -> bool {
    #[cfg(feature = "cuda")]
    return crate::cube::cuda::serves(&param.device);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = param;
        false
    }
}
