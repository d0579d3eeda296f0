//! An optimizer at a multiple of the learning rate, whose state is restored where you say.

use std::cell::RefCell;

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

thread_local! {
    /// Where the states of this thread's loads go, if not to Burn's default device.
    static HOME: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Runs `load`, in which [`ModuleOptimizer::load_record`] restores states on `device`, if the optimizers are [`Scaled`]: those
/// of this crate, and those that [`Groups::init`](super::Groups::init) builds.
///
/// Burn restores other states on its default device, and moves each of them when its parameter is updated. In a
/// program with a GPU backend that is the first GPU, whichever one the rank computes on, and even if the state is to
/// stay in host memory or there is no GPU.
pub fn restored_on<T>(device: &Device, load: impl FnOnce() -> T) -> T {
    /// Restores the setting, even after a panic.
    struct Ends(Option<Device>);
    impl Drop for Ends {
        fn drop(&mut self) {
            HOME.set(self.0.take());
        }
    }
    let _ends = Ends(HOME.replace(Some(device.clone())));
    load()
}

/// Creates an optimizer for all parameters of a model, at the learning rate itself.
pub(super) fn of_all(optimizer: impl Optimizer) -> ModuleOptimizer {
    Scaled::by(1.0, optimizer).into()
}

/// A state that is [restored on the device](restored_on) of its parameter. It has the record of the inner state.
#[derive(Clone, Debug)]
pub struct DeviceState<S>(S);

impl<S: RecordState> RecordState for DeviceState<S> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.0.state_flatten(prefix, out);
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let home = HOME.with_borrow(Clone::clone);
        S::state_unflatten(prefix, src, home.as_ref().unwrap_or(device)).map(Self)
    }
}

/// An optimizer that multiplies the learning rate of each update by a constant factor. Its records are those of the inner
/// optimizer, and its states are [restored](restored_on) where they are needed.
///
/// ```
/// use burn::{optim::Optimizer, tensor::{Device, Tensor}};
/// use firebrick_strategies::optim::{Scaled, Sgd};
///
/// let device = Device::flex();
/// let (param, grad) = (Tensor::<1>::ones([1], &device), Tensor::<1>::ones([1], &device));
/// let (param, _) = Scaled::by(0.5, Sgd::new()).step(0.5, param, grad, None);
/// assert_eq!(param.into_scalar::<f32>(), 0.75);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled<O> {
    by: f64,
    optimizer: O,
}

impl<O> Scaled<O> {
    /// Wraps `optimizer`, with `by` times the learning rate.
    pub fn by(by: f64, optimizer: O) -> Self {
        Self { by, optimizer }
    }
}

impl<O: Optimizer> Optimizer for Scaled<O> {
    type State<const D: usize> = DeviceState<O::State<D>>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<DeviceState<O::State<D>>>,
    ) -> (Tensor<D>, Option<DeviceState<O::State<D>>>) {
        let state = state.map(|DeviceState(state)| state);
        let (param, state) = self.optimizer.step(self.by * rate, param, grad, state);
        (param, state.map(DeviceState))
    }

    fn to_device<const D: usize>(
        state: DeviceState<O::State<D>>,
        device: &Device,
    ) -> DeviceState<O::State<D>> {
        DeviceState(O::to_device(state.0, device))
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::optim::GradientsParams;

    use super::*;
    use crate::optim::{AdamW, Groups, Sgd};

    thread_local! {
        /// Where the last state was restored.
        static FOUND: RefCell<Option<Device>> = const { RefCell::new(None) };
    }

    /// An optimizer whose states tell where they are restored.
    #[derive(Clone, Debug)]
    struct Telling;

    #[derive(Clone, Debug)]
    struct Told;

    impl RecordState for Told {
        fn state_flatten(&self, _: &str, _: &mut StateSink) {}

        fn state_unflatten(_: &str, _: &mut StateSource, device: &Device) -> Option<Self> {
            FOUND.set(Some(device.clone()));
            Some(Self)
        }
    }

    impl Optimizer for Telling {
        type State<const D: usize> = Told;

        fn step<const D: usize>(
            &self,
            _: LearningRate,
            param: Tensor<D>,
            _: Tensor<D>,
            _: Option<Told>,
        ) -> (Tensor<D>, Option<Told>) {
            (param, Some(Told))
        }

        fn to_device<const D: usize>(state: Told, _: &Device) -> Told {
            state
        }
    }

    #[test]
    fn states_are_restored_where_they_are_needed() {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        let gradients = || {
            let mut grads = GradientsParams::new();
            grads.register(model.weight.id, Tensor::<2>::ones([3, 2], &device.clone().inner()));
            grads
        };
        let of_groups = Groups::default().init(&model, Telling, |optimizer, _| optimizer).unwrap();
        for mut optimizer in [of_all(Telling), of_groups] {
            optimizer.step(0.1, model.clone(), gradients());
            let record = || optimizer.to_record();
            // Burn restores on devices without autodiff, so that this one can only be ours.
            drop(restored_on(&device, || optimizer.clone().load_record(record())));
            assert!(FOUND.take().is_some_and(|found| found.is_autodiff()));
            drop(optimizer.clone().load_record(record()));
            assert!(FOUND.take().is_some_and(|found| !found.is_autodiff()));
        }
    }

    #[test]
    fn records_are_those_of_the_inner_optimizer() {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(3, 2).with_bias(false).init(&device);
        let record = |mut optimizer: ModuleOptimizer| {
            let mut grads = GradientsParams::new();
            grads.register(model.weight.id, Tensor::<2>::ones([3, 2], &device.clone().inner()));
            optimizer.step(0.1, model.clone(), grads);
            optimizer.to_record().into_bytes().unwrap()
        };
        assert_eq!(record(AdamW::new().init().unwrap()), record(AdamW::new().into()));
        assert_eq!(record(Sgd::new().momentum(0.9).init().unwrap()), record(Sgd::new().momentum(0.9).into()));
    }
}
