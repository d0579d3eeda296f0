//! LAMB: Adam with a step relative to the norm of each parameter.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::cast;
use serde::{Deserialize, Serialize};

use super::{HeldParam, ModelGroups, ModelOptimizer, OfBurn, OptimizerRecipe, ranges};
use crate::SettingError;

/// LAMB, layer-wise adaptive moments for large batches ([You et al., 2020](https://arxiv.org/abs/1904.00962)), as
/// computed by DeepSpeed's `FusedLamb`.
///
/// With the gradient g of the parameter θ at update t and the learning rate η:
///
/// ```text
/// m ← β₁m + (1 - β₁)g
/// v ← β₂v + (1 - β₂)g²
/// u ← m / (√v + ε) + λθ
/// c ← ‖θ‖ / ‖u‖, at least the least and at most the most coefficient; 1 if a norm is 0
/// θ ← θ - η √(1 - β₂ᵗ) / (1 - β₁ᵗ) c u
/// ```
///
/// The paper, and [Burn's LAMB](burn::optim::Lamb), correct the moments before they compute u, and do not bound c. This
/// one uses tensor operations on every backend, in f32 whatever the parameter's dtype.
///
/// An update of an element depends on the norm of the whole parameter, so LAMB cannot update shards, and `Zero` rejects
/// it in stages 1 to 3.
///
/// ```
/// let optimizer = firebrick_strategies::optim::Lamb::new().weight_decay(0.01).init()?;
/// # let _ = optimizer;
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lamb {
    /// Decay rates of the two moments. Default: `(0.9, 0.999)`.
    pub betas: (f32, f32),
    /// Added to the square root of the second moment. Default: 1e-8.
    pub epsilon: f32,
    /// Adds `weight_decay · weight` to the updates. In groups, it applies
    /// to matrices, unless a group has its own. Default: 0.
    pub weight_decay: f32,
    /// The largest coefficient c, the trust ratio. Default: 10.
    pub max_coeff: f32,
    /// The smallest one. Default: 0.01.
    pub min_coeff: f32,
    /// Whether to correct the moments for their start at 0. Default: yes.
    pub bias_correction: bool,
}

impl Default for Lamb {
    fn default() -> Self {
        Self::new()
    }
}

impl Lamb {
    /// Creates LAMB with β₁ = 0.9, β₂ = 0.999, ε = 1e-8, no weight decay, and coefficients from 0.01 to 10.
    pub fn new() -> Self {
        Self {
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_coeff: 10.0,
            min_coeff: 0.01,
            bias_correction: true,
        }
    }

    /// Sets β₁ and β₂, the decay rates of the two moments.
    pub fn betas(self, beta_1: f32, beta_2: f32) -> Self {
        Self { betas: (beta_1, beta_2), ..self }
    }

    /// Sets ε, which is added to the square root of the second moment.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets λ: each update includes λ times the parameter.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay, ..self }
    }

    /// Sets the bounds of the coefficient c.
    pub fn coefficients(self, least: f32, most: f32) -> Self {
        Self { min_coeff: least, max_coeff: most, ..self }
    }

    /// Sets whether the step corrects the moments for their start at 0.
    pub fn bias_correction(self, bias_correction: bool) -> Self {
        Self { bias_correction, ..self }
    }

    /// Creates an optimizer for a whole model. [Groups](super::Groups) give parameters settings of their own.
    ///
    /// # Errors
    ///
    /// A setting is out of range.
    pub fn init(self) -> Result<ModelOptimizer, SettingError> {
        self.check()?;
        Ok(ModelOptimizer::of_all(OfBurn(self)))
    }

    /// Returns η, corrected.
    fn rate(&self, rate: LearningRate, time: usize) -> f64 {
        let correction = |beta: f32| 1.0 - f64::from(beta).powi(time as i32);
        match self.bias_correction {
            true => rate * correction(self.betas.1).sqrt() / correction(self.betas.0),
            false => rate,
        }
    }
}

/// The state of [`Lamb`] for one parameter, in f32.
#[derive(Clone, Debug)]
pub struct LambState<const D: usize> {
    /// Updates so far.
    pub time: usize,
    /// The decaying mean of gradients.
    pub moment_1: Tensor<D>,
    /// The decaying mean of squared gradients.
    pub moment_2: Tensor<D>,
}

/// The names of the state's fields in a record, the same as Burn's.
const TIME: &str = "time";
const MOMENT_1: &str = "moment_1";
const MOMENT_2: &str = "moment_2";

impl<const D: usize> RecordState for LambState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, TIME, self.time.into());
        out.push_tensor(prefix, MOMENT_1, self.moment_1.to_data());
        out.push_tensor(prefix, MOMENT_2, self.moment_2.to_data());
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let time = usize::try_from(src.take_scalar(prefix, TIME)?).ok()?;
        let mut tensor = |name| Some(Tensor::from_data(src.take_tensor(prefix, name)?, device));
        Some(Self { time, moment_1: tensor(MOMENT_1)?, moment_2: tensor(MOMENT_2)? })
    }
}

impl OptimizerRecipe for Lamb {
    fn check(&self) -> Result<(), SettingError> {
        let Self { betas, epsilon, weight_decay, max_coeff, min_coeff, .. } = *self;
        ranges::betas(betas)?;
        ranges::epsilon(epsilon)?;
        ranges::weight_decay(weight_decay)?;
        SettingError::require(min_coeff >= 0.0, "min_coeff", "at least 0", min_coeff)?;
        let possible = max_coeff.is_finite() && max_coeff >= min_coeff;
        SettingError::require(possible, "max_coeff", "finite and at least `min_coeff`", max_coeff)
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    /// Two moments in f32.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64 {
        2 * param.elements * 4
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.build(|weight_decay| Self { weight_decay, ..*self })
    }
}

impl Optimizer for Lamb {
    type State<const D: usize> = LambState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<LambState<D>>,
    ) -> (Tensor<D>, Option<LambState<D>>) {
        let dtype = param.dtype();
        let [param, grad] = [param, grad].map(|tensor| cast(tensor, FloatDType::F32));
        let (time, before) = match state {
            None => (1, None),
            Some(LambState { time, moment_1, moment_2 }) => (time + 1, Some((moment_1, moment_2))),
        };
        let square = grad.clone().square().mul_scalar(1.0 - self.betas.1);
        let grad = grad.mul_scalar(1.0 - self.betas.0);
        let (moment_1, moment_2) = match before {
            None => (grad, square),
            Some((moment_1, moment_2)) => {
                (moment_1.mul_scalar(self.betas.0).add(grad), moment_2.mul_scalar(self.betas.1).add(square))
            }
        };
        let update = moment_1.clone().div(moment_2.clone().sqrt().add_scalar(self.epsilon));
        let update = match self.weight_decay {
            0.0 => update,
            weight_decay => update.add(param.clone().mul_scalar(weight_decay)),
        };
        let (of_param, of_update) = (norm(param.clone()), norm(update.clone()));
        let none = of_param.clone().equal_scalar(0.0).bool_or(of_update.clone().equal_scalar(0.0));
        // Avoids 0 / 0 before the mask replaces it.
        let coefficient =
            (of_param / of_update.clamp_min(f32::MIN_POSITIVE)).clamp(self.min_coeff, self.max_coeff);
        let coefficient = coefficient.mask_fill(none, 1.0).mul_scalar(self.rate(rate, time));
        let param = cast(param - update.mul(coefficient.reshape([1; D])), FloatDType::from(dtype));
        (param, Some(LambState { time, moment_1, moment_2 }))
    }

    fn to_device<const D: usize>(state: LambState<D>, device: &Device) -> LambState<D> {
        let LambState { time, moment_1, moment_2 } = state;
        LambState { time, moment_1: moment_1.to_device(device), moment_2: moment_2.to_device(device) }
    }
}

/// Returns the L2 norm, `[1]`.
fn norm<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    tensor.square().sum().sqrt()
}
