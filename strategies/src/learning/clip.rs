//! Gradient clipping.
//!
//! Pascanu, Mikolov, Bengio, *On the difficulty of training recurrent neural networks*, 2013
//! (arXiv:1211.5063).

use burn::module::{Module, ParamId};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    Effects, GradMap, Grads, Outcome, SettingError, Setup, Stage, Stages, Strategy, StrategyError,
    StrategyRecipe,
};

/// Bounds the gradients of an update, those of all its micro-batches together. The norm that a trainer reports is the one
/// before clipping.
///
/// ```
/// use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
/// use firebrick_strategies::{Clip, Composition, Grads, Outcome, Setup};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(1, 2).with_bias(false).init(&device);
/// let mut clip = Clip::norm(1.0).start(&mut Setup::new(&model, &device))?;
/// let mut params = GradientsParams::new();
/// params.register(model.weight.id, Tensor::<2>::from_data([[3.0, 4.0]], &Device::flex()));
///
/// let Outcome::Apply(mut grads) = clip.collect(&model, Grads::new(params, true))? else { panic!() };
/// assert_eq!(grads.norm(&model)?.into_scalar::<f32>(), 5.0); // the norm before clipping
/// let clipped = grads.into_params().get::<2>(model.weight.id).unwrap();
/// assert!((clipped.into_data().try_to_vec::<f32>().unwrap()[1] - 0.8).abs() < 1e-6);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clip {
    /// The largest L2 norm of all gradients together.
    #[serde(skip_serializing_if = "Option::is_none")]
    norm: Option<f64>,
    /// The largest absolute value of each element.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
}

impl Clip {
    /// Scales all gradients by `min(1, max / (norm + 1e-6))`, with one norm over all parameters, like torch's
    /// `clip_grad_norm_`.
    pub fn norm(max: f64) -> Self {
        Self { norm: Some(max), value: None }
    }

    /// Clamps each element of each gradient into `-max..=max`.
    pub fn value(max: f64) -> Self {
        Self { norm: None, value: Some(max) }
    }
}

impl StrategyRecipe for Clip {
    fn effects(&self) -> Effects {
        Effects::of("Clip")
    }

    fn check(&self) -> Result<(), SettingError> {
        let bound = match (self.norm, self.value) {
            (Some(bound), None) | (None, Some(bound)) => bound,
            (norm, _) => {
                let found = if norm.is_some() { "both" } else { "neither" };
                return SettingError::require(false, "", "Clip(norm: ..) or Clip(value: ..)", found);
            }
        };
        SettingError::require(
            bound > 0.0 && bound.is_finite(),
            "",
            "a bound that is finite and above 0",
            bound,
        )
    }
}

impl<M: Module> Strategy<M> for Clip {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(self.clone()))
    }
}

impl<M: Module> Stage<M> for Clip {
    fn name(&self) -> &'static str {
        "Clip"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        if let Some(max) = self.norm {
            grads.clip(master, max)?;
        }
        if let Some(max) = self.value {
            grads.bound(master, &mut Clamp(max))?;
        }
        Ok(Outcome::Apply(grads))
    }
}

struct Clamp(f64);

impl GradMap for Clamp {
    fn map<const D: usize>(&mut self, _: ParamId, grad: Tensor<D>) -> Tensor<D> {
        grad.clamp(-self.0, self.0)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;

    use super::*;
    use crate::{Composition, testing};

    fn clip(recipe: Clip, values: [f32; 2]) -> (Vec<f32>, f32) {
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(1, 2).with_bias(false).init(&device);
        let mut stage = recipe.start(&mut Setup::new(&model, &device)).unwrap();
        let mut params = GradientsParams::new();
        params.register(model.weight.id, Tensor::<2>::from_data([values], &testing::device()));
        let Ok(Outcome::Apply(mut grads)) = stage.collect(&model, Grads::new(params, true)) else {
            panic!("gradients are passed on")
        };
        let norm = grads.norm(&model).unwrap().into_scalar::<f32>();
        let grad = grads.into_params().get::<2>(model.weight.id).unwrap();
        (grad.into_data().try_to_vec().unwrap(), norm)
    }

    #[test]
    fn a_norm_below_the_bound_changes_no_bit() {
        assert_eq!(clip(Clip::norm(5.1), [3.1, 3.9]).0, [3.1, 3.9]);
    }

    #[test]
    fn a_norm_above_the_bound_becomes_the_bound() {
        let (grad, norm) = clip(Clip::norm(0.5), [30.0, 40.0]);
        assert_eq!(norm, 50.0);
        let after = (grad[0].powi(2) + grad[1].powi(2)).sqrt();
        assert!((after - 0.5).abs() < 1e-6, "{after}");
        assert!((grad[1] / grad[0] - 4.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn values_are_clamped_and_the_norm_is_the_one_before() {
        let (grad, norm) = clip(Clip::value(3.5), [3.0, -4.0]);
        assert_eq!((grad, norm), (vec![3.0, -3.5], 5.0));
    }

    #[test]
    fn an_infinite_gradient_shows_in_the_norm_even_after_clamping() {
        let (_, norm) = clip(Clip::value(1.0), [f32::INFINITY, 0.0]);
        assert!(!norm.is_finite());
    }

    #[test]
    fn impossible_bounds_are_refused() {
        let device = testing::device();
        let model: Linear = LinearConfig::new(1, 2).init(&device);
        for max in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = Clip::norm(max).start(&mut Setup::new(&model, &device)).err().unwrap();
            assert!(error.to_string().contains("finite and above 0"), "{error}");
        }
    }
}
