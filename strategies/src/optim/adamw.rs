//! AdamW: Adam with decoupled weight decay.

use burn::optim::{AdamWConfig, AdamWState, AdaptiveMomentumState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::optim::{Parts, Together, equations};
use serde::{Deserialize, Serialize};

use super::{Fused, HeldParam, ModelGroups, ModelOptimizer, OptimizerRecipe, ParamOptimizer, ranges};
use crate::SettingError;

/// AdamW, Adam with decoupled weight decay ([Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101)).
///
/// With the gradient g of the parameter θ at update t and the learning rate η:
///
/// ```text
/// m ← β₁m + (1 - β₁)g        m̂ = m / (1 - β₁ᵗ)
/// v ← β₂v + (1 - β₂)g²       v̂ = v / (1 - β₂ᵗ)
/// θ ← (1 - ηλ)θ - η m̂ / (√v̂ + ε)
/// ```
///
/// As in torch, the corrections are moved out of the arithmetic per element:
/// `(η / (1 - β₁ᵗ)) m / (√v / √(1 - β₂ᵗ) + ε)` has one division instead of the equation's three, which would be slower
/// than memory. In f32 it equals [Burn's AdamW](burn::optim::AdamW) except for rounding (1 - β₂ᵗ is computed in f64
/// here), and reads and writes its records. For AMSGrad and cautious weight decay, use Burn's optimizer.
///
/// ```
/// use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
/// use firebrick_strategies::optim::AdamW;
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 1).init(&device);
/// let mut optimizer = AdamW::new().betas(0.9, 0.95).weight_decay(0.1).init()?;
/// let loss = model.forward(Tensor::<2>::ones([1, 2], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model = optimizer.step(1e-3, model, grads);
/// # let _ = model;
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// Decay rates of the two moments. Default: `(0.9, 0.999)`.
    pub betas: (f32, f32),
    /// Added to the square root of the second moment. Default: 1e-8.
    pub epsilon: f32,
    /// Each update subtracts `lr · weight_decay · weight`. In groups, it applies
    /// to matrices, unless a group has its own. Default: 0.
    pub weight_decay: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self::new()
    }
}

impl AdamW {
    /// Creates AdamW with β₁ = 0.9, β₂ = 0.999, ε = 1e-8, and no weight decay.
    pub fn new() -> Self {
        Self { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0 }
    }

    /// Sets β₁ and β₂, the decay rates of the two moments.
    pub fn betas(self, beta_1: f32, beta_2: f32) -> Self {
        Self { betas: (beta_1, beta_2), ..self }
    }

    /// Sets ε, which is added to the square root of the second moment.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets λ: each update subtracts the learning rate times λ times the parameter.
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

    /// Returns the arithmetic of update `time`, counted from 1.
    pub(super) fn rule(&self, rate: LearningRate, time: usize) -> equations::AdamW {
        let Self { betas: (beta_1, beta_2), epsilon, weight_decay } = *self;
        let correction = |beta: f32| 1.0 - f64::from(beta).powi(time as i32);
        equations::AdamW {
            beta_1,
            beta_2,
            epsilon,
            rest_1: 1.0 - beta_1,
            rest_2: 1.0 - beta_2,
            kept: (1.0 - rate * f64::from(weight_decay)) as f32,
            step: (rate / correction(beta_1)) as f32,
            root: correction(beta_2).sqrt().recip() as f32,
        }
    }

    /// Returns Burn's own AdamW with these settings.
    fn of_burn(&self) -> burn::optim::AdamW {
        let config = AdamWConfig::new().with_beta_1(self.betas.0).with_beta_2(self.betas.1);
        config.with_epsilon(self.epsilon).with_weight_decay(self.weight_decay).build()
    }
}

impl OptimizerRecipe for AdamW {
    fn check(&self) -> Result<(), SettingError> {
        ranges::betas(self.betas)?;
        ranges::epsilon(self.epsilon)?;
        ranges::weight_decay(self.weight_decay)
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    /// Two moments in the parameter's dtype.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64 {
        2 * param.elements * param.element_bytes
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.of(|weight_decay| Fused(Self { weight_decay, ..*self }))
    }
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        self.alone(rate, param, grad, state)
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        burn::optim::AdamW::to_device(state, device)
    }
}

impl ParamOptimizer for AdamW {
    fn update<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
        together: &mut Together,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let (before, max_moment_2, moments) = match state.map(|state| state.momentum) {
            None => (0, None, None),
            Some(AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2 }) => {
                (time, max_moment_2, Some([moment_1, moment_2]))
            }
        };
        let state = |time, [moment_1, moment_2]: [Tensor<D>; 2], max_moment_2| {
            AdamWState::new(AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2 })
        };
        let time = before + 1;
        match together.step(&self.rule(rate, time), Parts { param, grad, moments }) {
            Ok((param, moments)) => (param, Some(state(time, moments, max_moment_2))),
            Err(Parts { param, grad, moments }) => {
                let grad = grad.cast(param.dtype());
                let state = moments.map(|moments| state(before, moments, max_moment_2));
                self.of_burn().step(rate, param, grad, state)
            }
        }
    }

    fn retracted<const D: usize>(mut state: AdamWState<D>) -> AdamWState<D> {
        state.momentum.time -= 1;
        state
    }

    fn tensors<const D: usize>(state: &mut AdamWState<D>) -> Vec<&mut Tensor<D>> {
        let AdaptiveMomentumState { moment_1, moment_2, max_moment_2, .. } = &mut state.momentum;
        [moment_1, moment_2].into_iter().chain(max_moment_2).collect()
    }
}
