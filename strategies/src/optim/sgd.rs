//! SGD: gradient descent, plain or with momentum.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::optim::{Parts, Together, equations};
use serde::{Deserialize, Serialize};

use super::{Fused, HeldParam, ModelGroups, ModelOptimizer, OptimizerRecipe, ParamOptimizer, ranges};
use crate::SettingError;

/// Stochastic gradient descent, plain or with momentum
/// ([Sutskever et al., 2013](https://proceedings.mlr.press/v28/sutskever13.html)).
///
/// With the gradient g of the parameter θ and the learning rate η, as in torch and Burn:
///
/// ```text
/// g ← g + λθ
/// u ← μu + (1 - τ)g          at the first update u ← g
/// g ← g + μu                 with Nesterov momentum
/// g ← u                      with the plain one
/// θ ← θ - ηg
/// ```
///
/// In f32 it equals [Burn's Sgd](burn::optim::Sgd) bit for bit, and reads and writes its records.
///
/// ```
/// let optimizer = firebrick_strategies::optim::Sgd::new().momentum(0.9).nesterov(true).init()?;
/// # let _ = optimizer;
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {
    /// Decay rate of the velocity. Default: 0, without a velocity.
    pub momentum: f32,
    /// Whether to use Nesterov momentum, which steps along the new velocity. Default: no.
    pub nesterov: bool,
    /// Adds `weight_decay · weight` to the gradients. In groups, it applies
    /// to matrices, unless a group has its own. Default: 0.
    pub weight_decay: f32,
    /// The share of each gradient except the first that the velocity omits. Default: 0.
    pub dampening: f64,
}

impl Default for Sgd {
    fn default() -> Self {
        Self::new()
    }
}

impl Sgd {
    /// Creates plain gradient descent: no momentum, no dampening, no weight decay.
    pub fn new() -> Self {
        Self { momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// Sets μ, the decay rate of the velocity. At 0 there is no velocity.
    pub fn momentum(self, momentum: f32) -> Self {
        Self { momentum, ..self }
    }

    /// Sets τ, the share of each gradient except the first that the velocity omits.
    pub fn dampening(self, dampening: f64) -> Self {
        Self { dampening, ..self }
    }

    /// Sets whether the step looks ahead along the new velocity. It has no effect without momentum.
    pub fn nesterov(self, nesterov: bool) -> Self {
        Self { nesterov, ..self }
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

    /// Returns the update with momentum; `first` if there is no velocity yet.
    fn rule(&self, rate: LearningRate, first: bool) -> equations::Momentum {
        equations::Momentum {
            momentum: self.momentum,
            taken: if first { 1.0 } else { (1.0 - self.dampening) as f32 },
            nesterov: self.nesterov,
            plain: self.plain(rate),
        }
    }

    /// Returns the update without momentum.
    fn plain(&self, rate: LearningRate) -> equations::Sgd {
        equations::Sgd { weight_decay: self.weight_decay, rate: rate as f32 }
    }

    /// Computes the update in tensor operations, on backends without the single pass.
    fn by_tensors<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        velocity: Option<Tensor<D>>,
    ) -> (Tensor<D>, Option<Tensor<D>>) {
        let grad = grad.cast(param.dtype());
        let grad = match self.weight_decay {
            0.0 => grad,
            weight_decay => param.clone().mul_scalar(weight_decay).add(grad),
        };
        if self.momentum == 0.0 {
            return (param - grad.mul_scalar(rate), None);
        }
        let velocity = match velocity {
            None => grad.clone(),
            Some(velocity) => {
                grad.clone().mul_scalar(1.0 - self.dampening).add(velocity.mul_scalar(self.momentum))
            }
        };
        let grad = match self.nesterov {
            true => velocity.clone().mul_scalar(self.momentum).add(grad),
            false => velocity.clone(),
        };
        (param - grad.mul_scalar(rate), Some(velocity))
    }
}

/// The state of [`Sgd`] for one parameter. Its record has the same names as Burn's.
#[derive(Clone, Debug)]
pub struct SgdState<const D: usize> {
    /// The decaying sum of the gradients, with momentum.
    pub velocity: Option<Tensor<D>>,
}

/// The path of the velocity in Burn's record.
const VELOCITY: &str = "momentum.velocity";

impl<const D: usize> RecordState for SgdState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(velocity) = &self.velocity {
            out.push_tensor(prefix, VELOCITY, velocity.clone().into_data());
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = src.take_tensor(prefix, VELOCITY);
        Some(Self { velocity: velocity.map(|velocity| Tensor::from_data(velocity, device)) })
    }
}

impl OptimizerRecipe for Sgd {
    fn check(&self) -> Result<(), SettingError> {
        let Self { momentum, nesterov, weight_decay, dampening } = *self;
        let moves = momentum > 0.0;
        ranges::share("momentum", momentum)?;
        let possible = (0.0..=1.0).contains(&dampening);
        SettingError::require(possible, "dampening", "at least 0 and at most 1", dampening)?;
        SettingError::require(moves || dampening == 0.0, "dampening", "0 where `momentum` is", dampening)?;
        SettingError::require(moves || !nesterov, "nesterov", "false where `momentum` is 0", nesterov)?;
        ranges::weight_decay(weight_decay)
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    /// A velocity in the parameter's dtype, with momentum.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64 {
        if self.momentum == 0.0 { 0 } else { param.elements * param.element_bytes }
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.of(|weight_decay| Fused(Self { weight_decay, ..*self }))
    }
}

impl Optimizer for Sgd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        self.alone(rate, param, grad, state)
    }

    fn to_device<const D: usize>(state: SgdState<D>, device: &Device) -> SgdState<D> {
        SgdState { velocity: state.velocity.map(|velocity| velocity.to_device(device)) }
    }
}

impl ParamOptimizer for Sgd {
    fn update<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<SgdState<D>>,
        together: &mut Together,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let velocity = state.and_then(|state| state.velocity).filter(|_| self.momentum != 0.0);
        let stepped = match self.momentum {
            0.0 => together
                .step(&self.plain(rate), Parts { param, grad, moments: Some([]) })
                .map(|(param, [])| (param, None))
                .map_err(|Parts { param, grad, .. }| (param, grad, None)),
            _ => {
                let rule = self.rule(rate, velocity.is_none());
                let moments = velocity.map(|velocity| [velocity]);
                together
                    .step(&rule, Parts { param, grad, moments })
                    .map(|(param, [velocity])| (param, Some(velocity)))
                    .map_err(|Parts { param, grad, moments }| {
                        (param, grad, moments.map(|[velocity]| velocity))
                    })
            }
        };
        let (param, velocity) = match stepped {
            Ok(stepped) => stepped,
            Err((param, grad, velocity)) => self.by_tensors(rate, param, grad, velocity),
        };
        (param, Some(SgdState { velocity }))
    }

    fn retracted<const D: usize>(state: SgdState<D>) -> SgdState<D> {
        state
    }

    fn tensors<const D: usize>(state: &mut SgdState<D>) -> Vec<&mut Tensor<D>> {
        state.velocity.iter_mut().collect()
    }
}
