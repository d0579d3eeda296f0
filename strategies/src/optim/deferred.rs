//! An optimizer whose updates may be launched together, and left to the device's decision.

use std::cell::Cell;

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::optim::deferred;

thread_local! {
    /// Whether updates on this thread are retracted instead of made.
    static RETRACTS: Cell<bool> = const { Cell::new(false) };
}

/// An optimizer of which the host keeps a part of the state.
pub(super) trait Retract: Optimizer {
    /// Returns the state before the last update, given the state after it, if the device made no update: tensors have kept
    /// their values.
    fn retracted<const D: usize>(state: Self::State<D>) -> Self::State<D>;
}

/// Runs `step`, in which the updates of [deferred] optimizers undo what the host has recorded of their last update, which
/// the device did not make: see [`together_if_finite`](firebrick_kernels::optim::together_if_finite). Parameters keep
/// their values, and gradients are not read.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::GradientsParams;
/// use burn::tensor::Device;
/// use firebrick_strategies::optim::{AdamW, retract};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).with_bias(false).init(&device);
/// let mut optimizer = AdamW::new().init()?;
/// let before = model.weight.val().into_data();
/// let mut grads = GradientsParams::new();
/// grads.register(model.weight.id, model.weight.val().inner());
/// let model = retract(|| optimizer.step(0.1, model, grads));
/// assert_eq!(model.weight.val().into_data(), before);
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
pub fn retract<T>(step: impl FnOnce() -> T) -> T {
    /// Restores the state before, even if the step panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            RETRACTS.set(self.0);
        }
    }
    let _before = Before(RETRACTS.replace(true));
    step()
}

/// An optimizer that nothing wraps which reads its results: its updates may be launched with those of other parameters.
/// Burn's [`ModuleOptimizer`](burn::optim::ModuleOptimizer) puts the results into the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred<O>(pub O);

impl<O: Retract> Optimizer for Deferred<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        match RETRACTS.get() {
            true => (param, state.map(O::retracted)),
            false => deferred(|| self.0.step(rate, param, grad, state)),
        }
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}
