//! What strategies change of a model before it is trained, and how it is given back.

use std::collections::HashSet;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;

use crate::{Paths, StrategyError, apart, learns};

/// What strategies have changed of a model before anything else has seen it: which parameters they have
/// frozen, and how the factors of low rank are scaled that they have attached.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Adaptation, Freeze, Strategy, trained};
///
/// let model = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
/// let mut adaptation = Adaptation::seeded(1);
/// let adapted = Freeze::paths(["bias"]).adapt(model, &mut adaptation)?;
/// assert_eq!(trained(&adapted).len(), 1);
/// assert_eq!(trained(&adaptation.give_back(adapted)).len(), 2);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Adaptation {
    seed: u64,
    /// What was trained as the model was given.
    frozen: HashSet<ParamId>,
    low_rank: Option<LowRank>,
    /// What is trained whole beside factors.
    whole: HashSet<ParamId>,
}

/// Factors of low rank that were attached to matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRank {
    /// The columns of the first factor, and the rows of the second.
    pub rank: usize,
    /// Their product is scaled by this, over the rank.
    pub alpha: f64,
}

impl LowRank {
    /// What the product of the factors is multiplied by.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

impl Adaptation {
    /// Nothing changed yet; what is drawn is a function of this seed.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The run's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The factors that were attached, if any were.
    pub fn low_rank(&self) -> Option<LowRank> {
        self.low_rank
    }

    /// Whether this parameter is trained whole beside factors.
    pub fn is_whole(&self, parameter: ParamId) -> bool {
        self.whole.contains(&parameter)
    }

    /// Whether a strategy has frozen this parameter.
    pub(crate) fn is_frozen(&self, parameter: ParamId) -> bool {
        self.frozen.contains(&parameter)
    }

    pub(crate) fn attach(&mut self, low_rank: LowRank) {
        self.low_rank = Some(low_rank);
    }

    /// The parameter without a gradient.
    pub(crate) fn freeze<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if learns(&param) {
            self.frozen.insert(param.id);
        }
        apart(param).set_require_grad(false)
    }

    /// The parameter with a gradient, beside factors.
    pub(crate) fn train<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.whole.insert(param.id);
        apart(param).set_require_grad(true)
    }

    /// A model with these changes as it was given, with the values that it has now: factors are merged into
    /// their matrices, and what was frozen is trained again where it was.
    pub fn give_back<M: Module>(&self, model: M) -> M {
        struct Thaw<'a>(&'a HashSet<ParamId>);
        impl ModuleMapper for Thaw<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                match self.0.contains(&param.id) {
                    true => param.set_require_grad(true),
                    false => param,
                }
            }
        }
        let model = if self.low_rank.is_some() { model.materialize() } else { model };
        if self.frozen.is_empty() { model } else { model.map(&mut Thaw(&self.frozen)) }
    }
}

/// The parameters that a strategy's patterns mean.
pub(crate) fn params_of(
    strategy: &'static str,
    patterns: &[String],
    paths: &Paths,
) -> Result<HashSet<ParamId>, StrategyError> {
    let mut found = HashSet::new();
    for pattern in patterns {
        let params = paths.params_matching(pattern);
        found.extend(params.map_err(|error| StrategyError::Path { strategy, error })?);
    }
    Ok(found)
}
