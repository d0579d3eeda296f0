//! Lion: the sign of a momentum.

use burn::optim::{LearningRate, LionConfig, LionState, Optimizer};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::optim::{Parts, Together, equations};
use serde::{Deserialize, Serialize};

use super::{Fused, HeldParam, ModelGroups, ModelOptimizer, OptimizerRecipe, ParamOptimizer, ranges};
use crate::SettingError;

/// Lion, evolved sign momentum ([Chen et al., 2023](https://arxiv.org/abs/2302.06675)).
///
/// With the gradient g of the parameter θ and the learning rate η:
///
/// ```text
/// θ ← (1 - ηλ)θ - η sign(β₁m + (1 - β₁)g)
/// m ← β₂m + (1 - β₂)g
/// ```
///
/// It keeps one moment, AdamW two. Each element moves by η, so η is usually 3 to 10 times smaller than AdamW's, and λ
/// larger by the same factor.
///
/// In f32 it equals [Burn's Lion](burn::optim::Lion) bit for bit, and reads and writes its records.
///
/// ```
/// let optimizer = firebrick_strategies::optim::Lion::new().weight_decay(1.0).init()?;
/// # let _ = optimizer;
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lion {
    /// The weight of the momentum in the update, and the decay rate of the momentum. Default: `(0.9, 0.99)`.
    pub betas: (f32, f32),
    /// Each update subtracts `lr · weight_decay · weight`. In groups, it applies
    /// to matrices, unless a group has its own. Default: 0.
    pub weight_decay: f32,
}

impl Default for Lion {
    fn default() -> Self {
        Self::new()
    }
}

impl Lion {
    /// Creates Lion with β₁ = 0.9, β₂ = 0.99, and no weight decay.
    pub fn new() -> Self {
        Self { betas: (0.9, 0.99), weight_decay: 0.0 }
    }

    /// Sets β₁, the share of the momentum in the update, and β₂, the decay rate of the momentum.
    pub fn betas(self, beta_1: f32, beta_2: f32) -> Self {
        Self { betas: (beta_1, beta_2), ..self }
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

    fn rule(&self, rate: LearningRate) -> equations::Lion {
        let Self { betas: (beta_1, beta_2), weight_decay } = *self;
        let kept = (1.0 - rate * f64::from(weight_decay)) as f32;
        equations::Lion {
            beta_1,
            beta_2,
            rest_1: 1.0 - beta_1,
            rest_2: 1.0 - beta_2,
            kept,
            rate: rate as f32,
        }
    }

    /// Returns Burn's own Lion with these settings.
    fn of_burn(&self) -> burn::optim::Lion {
        let config = LionConfig::new().with_beta_1(self.betas.0).with_beta_2(self.betas.1);
        config.with_weight_decay(self.weight_decay).build()
    }
}

impl OptimizerRecipe for Lion {
    fn check(&self) -> Result<(), SettingError> {
        ranges::betas(self.betas)?;
        ranges::weight_decay(self.weight_decay)
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    /// A momentum in the parameter's dtype.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64 {
        param.elements * param.element_bytes
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.of(|weight_decay| Fused(Self { weight_decay, ..*self }))
    }
}

impl Optimizer for Lion {
    type State<const D: usize> = LionState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<LionState<D>>,
    ) -> (Tensor<D>, Option<LionState<D>>) {
        self.alone(rate, param, grad, state)
    }

    fn to_device<const D: usize>(state: LionState<D>, device: &Device) -> LionState<D> {
        burn::optim::Lion::to_device(state, device)
    }
}

impl ParamOptimizer for Lion {
    fn update<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<LionState<D>>,
        together: &mut Together,
    ) -> (Tensor<D>, Option<LionState<D>>) {
        let moments = state.map(|state| [state.momentum]);
        match together.step(&self.rule(rate), Parts { param, grad, moments }) {
            Ok((param, [momentum])) => (param, Some(LionState::new(momentum))),
            Err(Parts { param, grad, moments }) => {
                let grad = grad.cast(param.dtype());
                let state = moments.map(|[momentum]| LionState::new(momentum));
                self.of_burn().step(rate, param, grad, state)
            }
        }
    }

    fn retracted<const D: usize>(state: LionState<D>) -> LionState<D> {
        state
    }

    fn tensors<const D: usize>(state: &mut LionState<D>) -> Vec<&mut Tensor<D>> {
        vec![&mut state.momentum]
    }
}
