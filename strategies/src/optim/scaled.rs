//! An optimizer at a multiple of the learning rate.

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

/// An optimizer that multiplies the learning rate of each update by a constant factor. Its state and its records are
/// those of the inner optimizer.
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
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        self.optimizer.step(self.by * rate, param, grad, state)
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}
