//! An optimizer whose updates may be launched together.

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::optim::deferred;

/// An optimizer that nothing wraps which reads its results: its updates may be launched with those of other parameters.
/// Burn's [`ModuleOptimizer`](burn::optim::ModuleOptimizer) puts the results into the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred<O>(pub O);

impl<O: Optimizer> Optimizer for Deferred<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        deferred(|| self.0.step(rate, param, grad, state))
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}
