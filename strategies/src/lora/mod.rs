//! LoRA: trains low-rank factors beside frozen matrices.
//!
//! Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2021 (arXiv:2106.09685).
//!
//! ```text
//! mod.rs      Lora: the recipe
//! targets.rs  the matrices that receive factors
//! attach.rs   attaches the factors and freezes other parameters
//! ```

mod attach;
mod targets;

use burn::module::Module;

use crate::adaptation::{LowRank, params_of};
use crate::{Adaptation, Paths, Setup, Stage, StageState, Stages, Strategy, StrategyError};
use attach::Attach;
use targets::targets;

const NAME: &str = "Lora";

/// Trains two small factors beside each selected matrix, and freezes everything else.
///
/// Instead of its weight W, `[in, out]`, a layer reads
///
/// ```text
/// W + α/r · A·B,   A [in, r],  B [r, out]
/// ```
///
/// through Burn's own adapters, so layers need no changes. A is initialized uniformly within ±1/√in, as in PEFT, from
/// the run's seed and the matrix's path. B starts at 0, so the adapted model initially equals the given one. The bias
/// and all other parameters are frozen, except for those that you name in [`also`](Self::also) and
/// [`fresh`](Self::fresh).
///
/// # Which matrices
///
/// [`on`](Self::on) selects them. The default is the projections of attention: the matrices of modules called `query`,
/// `key`, `value`, `query_key_value` (or `qkv`, `q_proj`, `k_proj`, `v_proj`), and of `output` (`out_proj`, `o_proj`)
/// beside one of these. In Burn's attention and in Firebrick's models, these are all four projections. The paper adapts
/// two of them: `.on(["*.query.weight", "*.value.weight"])`. A tied matrix has one pair of factors at all of its
/// places.
///
/// # Memory
///
/// For Ψ parameters and ψ parameters of factors, with AdamW, in bytes between two steps:
///
/// | | full training | with `Lora` |
/// |---|---|---|
/// | f32 | 16Ψ | 4Ψ + 16ψ |
/// | `Amp::bf16()` | 16Ψ | 6Ψ + 16ψ |
///
/// A step computes each adapted matrix again, W + α/r · A·B, and keeps it from the forward to the backward pass. The
/// backward pass computes a gradient of the matrix's size on the way to those of the factors.
/// [`Recompute`](crate::Recompute) keeps the matrices of one block at a time.
///
/// # Checkpoints
///
/// `Lora` acts before all other strategies, wherever you write it: optimizer, shards and checkpoints contain the
/// adapted model, whose factors are called `PATH.lora.a` and `PATH.lora.b`. A run resumes from a checkpoint bit for
/// bit. The model that a run returns, `model.safetensors`, `best.safetensors` and the output of `consolidate` have the
/// structure of the given model, with W + α/r · A·B as weights.
///
/// Factors use the learning rate and weight decay of their matrix's [group](crate::optim::Groups). A Burn parameter
/// group that selects parameters by id does not include them.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Adaptation, Lora, Strategy, trained};
///
/// let model = LinearConfig::new(64, 32).init(&Device::flex().autodiff());
/// let mut adaptation = Adaptation::seeded(1);
/// let adapted = Lora::rank(4).alpha(8.0).on(["weight"]).adapt(model.clone(), &mut adaptation)?;
/// let trained: usize = trained(&adapted).iter().map(|one| one.shape.iter().product::<usize>()).sum();
/// assert_eq!(trained, 64 * 4 + 4 * 32);
/// assert_eq!(adapted.weight.val().into_data(), model.weight.val().into_data());
///
/// let merged = adaptation.give_back(adapted);
/// assert!(merged.weight.adapter().is_none());
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    low_rank: LowRank,
    on: Vec<String>,
    also: Vec<String>,
    fresh: Vec<String>,
}

impl Lora {
    /// Creates a recipe for factors of this rank, at least 1.
    pub fn rank(rank: usize) -> Self {
        Self {
            low_rank: LowRank { rank, alpha: rank as f64 },
            on: Vec::new(),
            also: Vec::new(),
            fresh: Vec::new(),
        }
    }

    /// Sets α: the product of the factors is scaled by `alpha / rank`. Default: the rank, for a scale of 1.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { low_rank: LowRank { alpha, ..self.low_rank }, ..self }
    }

    /// Adapts the matrices that these [patterns](Paths) match. Each pattern must match a matrix. Default: the
    /// projections of attention.
    pub fn on<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { on: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Also trains the parameters that these [patterns](Paths) match, without factors: `modules_to_save` of PEFT.
    pub fn also<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { also: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Also trains newly initialized parameters that these [patterns](Paths) match, without factors, unless an earlier
    /// strategy has frozen them. An example is a head that a pretrained folder lacked: if frozen, it would keep its
    /// random values. A run file finds these parameters automatically.
    pub fn fresh<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { fresh: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    fn check(&self) -> Result<(), StrategyError> {
        let LowRank { rank, alpha } = self.low_rank;
        let (setting, expected, found) = match () {
            _ if rank == 0 => ("the rank", "at least 1", rank.to_string()),
            _ if !(alpha > 0.0 && alpha.is_finite()) => ("alpha", "finite and above 0", alpha.to_string()),
            _ => return Ok(()),
        };
        Err(StrategyError::Setting { strategy: NAME, setting, expected, found })
    }
}

impl<M: Module> Strategy<M> for Lora {
    fn adapt(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        self.check()?;
        if adaptation.low_rank().is_some() {
            return Err(StrategyError::Twice(NAME));
        }
        if let Some(parameter) = reparameterized(&model) {
            return Err(StrategyError::Reparameterized { strategy: NAME, parameter });
        }
        let paths = Paths::of(&model);
        let mut also = params_of(NAME, &self.also, &paths)?;
        let fresh = params_of(NAME, &self.fresh, &paths)?;
        also.extend(fresh.into_iter().filter(|id| !adaptation.is_frozen(*id)));
        let mut targets = targets(&model, &paths, &self.on)?;
        targets.retain(|target| !also.contains(target));
        if targets.is_empty() {
            return Err(StrategyError::Setting {
                strategy: NAME,
                setting: "the matrices with factors",
                expected: "some that `also` does not train whole",
                found: "none".into(),
            });
        }
        adaptation.attach(self.low_rank);
        Ok(model.apply_reparameterization(Attach::new(self.low_rank, targets, also, adaptation)))
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        match reparameterized(setup.model()) {
            Some(_) => Ok(Stages::of(Adapting(self.low_rank))),
            None => Err(StrategyError::NotAdapted(NAME)),
        }
    }
}

/// Returns the path of the first parameter that is read through another one, if any.
fn reparameterized<M: Module>(model: &M) -> Option<String> {
    let paths = Paths::of(model);
    paths.places().iter().find_map(|place| place.reparameterizes.clone())
}

/// The live state of [`Lora`]: the factors are ordinary parameters.
#[derive(Clone, Copy, Debug)]
struct Adapting(LowRank);

impl<M> Stage<M> for Adapting {
    fn name(&self) -> &'static str {
        NAME
    }

    fn save(&self, state: StageState) -> StageState {
        let LowRank { rank, alpha } = self.0;
        state.with("rank", rank as f64).with("alpha", alpha)
    }

    /// Checks the scale: saved factors are only valid with the rank and alpha that they were trained with.
    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
        let (rank, alpha) = (saved.get("rank")?, saved.get("alpha")?);
        if (rank, alpha) == (self.0.rank as f64, self.0.alpha) {
            return Ok(());
        }
        let found = format!("alpha {} of rank {}, where it was {alpha} of {rank}", self.0.alpha, self.0.rank);
        Err(StrategyError::Setting {
            strategy: NAME,
            setting: "the scale",
            expected: "that of the run that was saved",
            found,
        })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
