//! Excludes parameters from training, by path.

use std::collections::{BTreeSet, HashSet};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;

use serde::{Deserialize, Serialize};

use crate::effects::OnResult;
use crate::{
    Adaptation, Effects, Paths, SettingError, Setup, Stage, Stages, Strategy, StrategyError, StrategyRecipe,
    params_of,
};

const NAME: &str = "Freeze";

/// Leaves parameters unchanged: they have no gradient, no optimizer state and no weight decay.
///
/// A [pattern](Paths) selects parameters, or all parameters of a module. A tied parameter is frozen at all of its
/// places. Parameters that the model itself has frozen stay frozen. The model that a run returns requires gradients
/// wherever the given model did.
///
/// | held between steps, of Ψ frozen parameters in f32 with AdamW | trained | frozen |
/// |---|---|---|
/// | the parameters | 4Ψ | 4Ψ |
/// | gradients and moments | 12Ψ | - |
///
/// You can write it anywhere among the strategies that transform gradients. Before [`Lora`](crate::Lora) it sees the
/// model without factors, and does not freeze them; after `Lora` it treats them like other parameters.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Adaptation, Composition, Freeze};
///
/// let model = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
/// let frozen = Freeze::paths(["weight"]).adapt(model.clone(), &mut Adaptation::default())?;
/// assert!(!frozen.weight.is_require_grad() && frozen.bias.as_ref().unwrap().is_require_grad());
///
/// let error = Freeze::paths(["wieght"]).adapt(model, &mut Adaptation::default()).unwrap_err();
/// assert!(error.to_string().contains("the nearest are `weight`"));
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Freeze {
    patterns: BTreeSet<String>,
}

impl Freeze {
    /// Freezes the parameters that these patterns match. Each pattern must match a parameter.
    pub fn paths<P: Into<String>>(patterns: impl IntoIterator<Item = P>) -> Self {
        Self { patterns: patterns.into_iter().map(Into::into).collect() }
    }
}

impl StrategyRecipe for Freeze {
    fn effects(&self) -> Effects {
        let paths = self.patterns.iter().cloned().collect();
        Effects { adapts: true, result: OnResult::ChangesAnywhere, paths, ..Effects::none(NAME) }
    }

    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(!self.patterns.is_empty(), "", "given at least one path", "[]")
    }
}

impl<M: Module> Strategy<M> for Freeze {
    fn adapted(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        let frozen = params_of(NAME, &self.patterns, &Paths::of(&model))?;
        Ok(model.map(&mut Freezing { frozen, adaptation }))
    }

    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(Frozen))
    }
}

struct Freezing<'a> {
    frozen: HashSet<ParamId>,
    adaptation: &'a mut Adaptation,
}

impl ModuleMapper for Freezing<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.frozen.contains(&param.id) { self.adaptation.freeze(param) } else { param }
    }
}

/// The live state of [`Freeze`], which does nothing.
#[derive(Clone, Copy, Debug)]
struct Frozen;

impl<M> Stage<M> for Frozen {
    fn name(&self) -> &'static str {
        NAME
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;
    use crate::{Composed, Composition, testing, trained};

    fn linear() -> Linear {
        LinearConfig::new(3, 2).init(&testing::device().autodiff())
    }

    fn adapted<M: Module + 'static>(model: M, strategy: &impl Composition<M>) -> (M, Adaptation) {
        let mut adaptation = Adaptation::seeded(0);
        (strategy.adapt(model, &mut adaptation).unwrap(), adaptation)
    }

    #[test]
    fn a_tied_parameter_is_frozen_at_all_of_its_places() {
        let tied = linear();
        let model = vec![tied.clone(), linear(), tied];
        let (model, _) = adapted(model, &Freeze::paths(["2.weight"]));
        let is_trained: Vec<_> = model.iter().map(|linear| linear.weight.is_require_grad()).collect();
        assert_eq!(is_trained, [false, true, false]);
        assert!(model[0].bias.as_ref().unwrap().is_require_grad());
        assert_eq!(trained(&model).len(), 3);
    }

    #[test]
    fn several_are_frozen_together_and_given_back_as_they_were() {
        let model = vec![linear(), linear().no_grad(), linear()];
        let strategies =
            Composed::new().with(Freeze::paths(["0"])).with(vec![Freeze::paths(["1", "2.bias"])]);
        let (model, adaptation) = adapted(model, &strategies);
        assert_eq!(trained(&model).len(), 1);
        let back = adaptation.give_back(model.valid()).train();
        let of = |linear: &Linear| linear.weight.is_require_grad();
        assert_eq!([of(&back[0]), of(&back[1]), of(&back[2])], [true, false, true]);
        assert_eq!(trained(&back).len(), 4);
    }

    /// Clones of a parameter share its lazy initializer.
    #[test]
    fn what_was_given_is_not_frozen_with_it() {
        let given = linear();
        assert!(!given.weight.is_initialized());
        let (frozen, _) = adapted(given.clone(), &Freeze::paths(["*"]));
        assert!(!frozen.weight.is_require_grad() && given.weight.is_require_grad());
        assert_eq!(frozen.weight.val().into_data(), given.weight.val().into_data());
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let error = Freeze::paths(["bais"]).adapt(linear(), &mut Adaptation::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("Freeze") && text.contains("`bais`") && text.contains("`bias`"), "{text}");
        let (model, device) = (linear(), testing::device().autodiff());
        let error = Freeze::paths([""; 0]).start(&mut Setup::new(&model, &device)).unwrap_err();
        assert!(error.to_string().contains("at least one path"), "{error}");
    }
}
