//! Adagrad: the learning rate of each element falls with the squares of its gradients.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::optim::{Parts, Together, equations};
use serde::{Deserialize, Serialize};

use super::{Fused, HeldParam, ModelGroups, ModelOptimizer, OptimizerRecipe, ParamOptimizer, ranges};
use crate::SettingError;

/// Adagrad ([Duchi et al., 2011](https://jmlr.org/papers/v12/duchi11a.html)), as in torch without its `lr_decay`, which
/// a schedule replaces.
///
/// With the gradient g of the parameter θ and the learning rate η:
///
/// ```text
/// g ← g + λθ
/// s ← s + g²
/// θ ← θ - η g / (√s + ε)
/// ```
///
/// In f32 it equals [Burn's AdaGrad](burn::optim::AdaGrad) without `lr_decay`, except for rounding, and reads and
/// writes its records.
///
/// ```
/// let optimizer = firebrick_strategies::optim::Adagrad::new().weight_decay(0.01).init()?;
/// # let _ = optimizer;
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adagrad {
    /// Added to the square root of the sum of squares. Default: 1e-10.
    pub epsilon: f32,
    /// Adds `weight_decay · weight` to the gradients. In groups, it applies
    /// to matrices, unless a group has its own. Default: 0.
    pub weight_decay: f32,
}

impl Default for Adagrad {
    fn default() -> Self {
        Self::new()
    }
}

impl Adagrad {
    /// Creates Adagrad with ε = 1e-10 and no weight decay.
    pub fn new() -> Self {
        Self { epsilon: 1e-10, weight_decay: 0.0 }
    }

    /// Sets ε, which is added to the square root of the sum of squares.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets λ: each gradient includes λ times the parameter.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay, ..self }
    }

    /// Creates an optimizer for a whole model. [Groups](super::Groups) give parameters settings of their own.
    ///
    /// # Errors
    ///
    /// A setting is out of range.
    pub fn init(self) -> Result<ModelOptimizer, SettingError> {
        self.check()?;
        Ok(ModelOptimizer::of_all(Fused(self)))
    }

    /// Computes the update in tensor operations, on backends without the single pass.
    fn by_tensors<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        sum: Option<Tensor<D>>,
    ) -> (Tensor<D>, Tensor<D>) {
        let grad = grad.cast(param.dtype()).add(param.clone().mul_scalar(self.weight_decay));
        let square = grad.clone().square();
        let sum = match sum {
            None => square,
            Some(sum) => sum.add(square),
        };
        let update = grad.div(sum.clone().sqrt().add_scalar(self.epsilon));
        (param - update.mul_scalar(rate), sum)
    }
}

impl OptimizerRecipe for Adagrad {
    fn check(&self) -> Result<(), SettingError> {
        ranges::epsilon(self.epsilon)?;
        ranges::weight_decay(self.weight_decay)
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    /// A sum of squares in the parameter's dtype.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64 {
        param.elements * param.element_bytes
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.of(|weight_decay| Fused(Self { weight_decay, ..*self }))
    }
}

/// The state of [`Adagrad`] for one parameter. Its record has the same names as Burn's.
#[derive(Clone, Debug)]
pub struct AdagradState<const D: usize> {
    /// Updates so far.
    pub time: usize,
    /// The sum of squared gradients.
    pub sum: Tensor<D>,
}

/// The paths of the state's fields in a record.
const TIME: &str = "lr_decay.time";
const SUM: &str = "lr_decay.sum";

impl<const D: usize> RecordState for AdagradState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, TIME, self.time.into());
        out.push_tensor(prefix, SUM, self.sum.to_data());
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let time = usize::try_from(src.take_scalar(prefix, TIME)?).ok()?;
        Some(Self { time, sum: Tensor::from_data(src.take_tensor(prefix, SUM)?, device) })
    }
}

impl Optimizer for Adagrad {
    type State<const D: usize> = AdagradState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdagradState<D>>,
    ) -> (Tensor<D>, Option<AdagradState<D>>) {
        self.alone(rate, param, grad, state)
    }

    fn to_device<const D: usize>(state: AdagradState<D>, device: &Device) -> AdagradState<D> {
        AdagradState { sum: state.sum.to_device(device), ..state }
    }
}

impl ParamOptimizer for Adagrad {
    fn update<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdagradState<D>>,
        together: &mut Together,
    ) -> (Tensor<D>, Option<AdagradState<D>>) {
        let time = state.as_ref().map_or(1, |state| state.time + 1);
        let rule =
            equations::Adagrad { epsilon: self.epsilon, weight_decay: self.weight_decay, rate: rate as f32 };
        let (param, sum) =
            match together.step(&rule, Parts { param, grad, moments: state.map(|state| [state.sum]) }) {
                Ok((param, [sum])) => (param, sum),
                Err(Parts { param, grad, moments }) => {
                    self.by_tensors(rate, param, grad, moments.map(|[sum]| sum))
                }
            };
        (param, Some(AdagradState { time, sum }))
    }

    fn retracted<const D: usize>(state: AdagradState<D>) -> AdagradState<D> {
        AdagradState { time: state.time - 1, ..state }
    }

    fn tensors<const D: usize>(state: &mut AdagradState<D>) -> Vec<&mut Tensor<D>> {
        vec![&mut state.sum]
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::{AdaGradConfig, GradientsParams, decay::WeightDecayConfig};
    use burn::tensor::DType;

    use super::*;

    /// Returns a vector after each update, computed in this dtype.
    fn updates<const N: usize>(
        adagrad: Adagrad,
        dtype: DType,
        start: [f64; 2],
        grads: [[f64; 2]; N],
    ) -> Vec<f64> {
        let tensor = |values: [f64; 2]| Tensor::<1>::from_data(values, (&Device::flex(), dtype));
        let (mut param, mut state) = (tensor(start), None);
        let after = grads.map(|grad| {
            (param, state) = adagrad.step(0.1, param.clone(), tensor(grad), state.take());
            param.clone().into_data().iter::<f64>().collect::<Vec<_>>()
        });
        after.concat()
    }

    fn near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 2e-7, "{found} {expected}");
        }
    }

    /// Gradients whose squares sum to squares: 3, 4 and 12 to 9, 25 and 169. In f64, tensor operations compute them.
    #[test]
    fn the_update_is_the_equations() {
        for dtype in [DType::F32, DType::F64] {
            let found = updates(Adagrad::new(), dtype, [1.0, -2.0], [[3.0, -4.0], [4.0, 3.0], [12.0, 0.0]]);
            near(&found, &[0.9, -1.9, 0.82, -1.96, 0.82 - 1.2 / 13.0, -1.96]);
            // With the decay the gradients are 2 + 0.5 · 2 = 3 and 3.05 + 0.5 · 1.9 = 4.
            let decaying = Adagrad::new().weight_decay(0.5);
            near(&updates(decaying, dtype, [2.0, 2.0], [[2.0; 2], [3.05; 2]]), &[1.9, 1.9, 1.82, 1.82]);
        }
    }

    #[test]
    fn it_goes_on_from_burns_state() {
        let device = Device::flex().autodiff();
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        let weight: Tensor<2> = Tensor::from_floats([[0.3, -0.2], [1.5, 0.0], [-0.1, 0.7]], &device);
        let model = Linear { weight: Param::from_tensor(weight), ..model };
        let grads = |model: &Linear, scale: f64| {
            let loss = model.forward(Tensor::<2>::ones([1, 3], &device) * scale).square().sum();
            GradientsParams::from_grads(loss.backward(), model)
        };
        let burns =
            AdaGradConfig::new().with_epsilon(1e-10).with_weight_decay(Some(WeightDecayConfig::new(0.1)));
        let mut burns = burns.init();
        let first = burns.step(0.1, model.clone(), grads(&model, 1.0));
        let mut ours = Adagrad::new().weight_decay(0.1).init().unwrap();
        ours.load(ModelOptimizer::from(burns.clone()).states(None).unwrap(), &Device::flex()).unwrap();
        let found = ours.step(0.1, first.clone(), grads(&first, 2.0));
        let expected = burns.step(0.1, first.clone(), grads(&first, 2.0));
        let apart = (found.weight.val() - expected.weight.val()).abs().max().into_scalar::<f32>();
        assert!(apart < 1e-7, "{apart:e}");
    }
}
