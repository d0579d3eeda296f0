//! What an optimizer says about itself.

use std::fmt::Debug;

use super::{ModelGroups, ModelOptimizer};
use crate::SettingError;

/// The recipe of an optimizer: its settings, and everything that other parts of the program need to know about it.
///
/// A recipe that also implements `PartialEq` and serde's traits is an entry of the run file once it is
/// [registered](super::Optimizers). Its settings are named fields, with defaults:
///
/// ```
/// use burn::optim::{LearningRate, Optimizer};
/// use burn::tensor::{Device, Tensor};
/// use firebrick_strategies::SettingError;
/// use firebrick_strategies::optim::{HeldParam, ModelGroups, ModelOptimizer, OptimizerRecipe, Optimizers};
/// use serde::{Deserialize, Serialize};
///
/// /// Updates by the sign of the gradient.
/// #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
/// #[serde(default, deny_unknown_fields)]
/// struct SignSgd {
///     /// Each update subtracts `lr · weight_decay · weight` from the matrices. Default: 0.
///     weight_decay: f32,
/// }
///
/// impl Optimizer for SignSgd {
///     type State<const D: usize> = (); // none
///
///     fn step<const D: usize>(
///         &self,
///         rate: LearningRate,
///         param: Tensor<D>,
///         grad: Tensor<D>,
///         _: Option<()>,
///     ) -> (Tensor<D>, Option<()>) {
///         let kept = param.mul_scalar(1.0 - rate * f64::from(self.weight_decay));
///         (kept - grad.sign().mul_scalar(rate), None)
///     }
///
///     fn to_device<const D: usize>(_: (), _: &Device) {}
/// }
///
/// impl OptimizerRecipe for SignSgd {
///     fn check(&self) -> Result<(), SettingError> {
///         let possible = self.weight_decay >= 0.0;
///         SettingError::require(possible, "weight_decay", "at least 0", self.weight_decay)
///     }
///
///     fn matrix_decay(&self) -> f32 {
///         self.weight_decay
///     }
///
///     fn state_bytes(&self, _: &HeldParam<'_>) -> u64 {
///         0
///     }
///
///     fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
///         groups.build(|weight_decay| Self { weight_decay })
///     }
/// }
///
/// // A run file of a program with these has `optimizer: SignSgd(weight_decay: 0.1)`.
/// let optimizers = Optimizers::built_in().optimizer::<SignSgd>("SignSgd");
/// ```
pub trait OptimizerRecipe: Debug + Send + Sync {
    /// Checks the ranges of the settings.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    fn check(&self) -> Result<(), SettingError>;

    /// Checks the schedule's largest learning rate, as `lr`. Default: any rate is allowed.
    ///
    /// # Errors
    ///
    /// The settings need another learning rate.
    fn check_rate(&self, peak: f64) -> Result<(), SettingError> {
        let _ = peak;
        Ok(())
    }

    /// Returns the weight decay of parameters of two or more axes, unless their [group](super::Groups) has another one.
    fn matrix_decay(&self) -> f32;

    /// Returns the bytes of the state of a parameter.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64;

    /// Returns the names of the settings that decide which state a parameter has: a resumed run must keep them.
    /// Default: none.
    fn fixed_settings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Builds the optimizer of a model whose parameters are in these groups. [`ModelGroups::build`] suffices for an
    /// optimizer that treats all parameters alike.
    fn build(&self, groups: &ModelGroups) -> ModelOptimizer;
}

/// A parameter, or the part of it that a rank updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldParam<'a> {
    /// The shape of the whole parameter.
    pub shape: &'a [usize],
    /// The elements that are updated here.
    pub elements: u64,
    /// Bytes of each element.
    pub element_bytes: u64,
    /// Whether it is a factor of [`Lora`](crate::Lora), which is attached after the optimizer was built.
    pub is_factor: bool,
}

impl dyn OptimizerRecipe {
    /// Returns the least bytes of state per parameter, those of a huge matrix in f32.
    pub fn least_state_bytes(&self) -> u64 {
        let side = 1 << 20;
        let elements = (side * side) as u64;
        let huge = HeldParam { shape: &[side, side], elements, element_bytes: 4, is_factor: false };
        self.state_bytes(&huge) / elements
    }
}
