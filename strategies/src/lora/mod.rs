//! LoRA: factors of low rank are trained beside frozen matrices.
//!
//! Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2021 (arXiv:2106.09685).
//!
//! ```text
//! mod.rs      Lora: the recipe
//! targets.rs  which matrices have factors
//! attach.rs   the factors, and what is frozen
//! ```

mod attach;
mod targets;

use burn::module::Module;

use crate::adaptation::{LowRank, params_of};
use crate::{Adaptation, Paths, SavedStates, Setup, Stage, StageState, Strategy, StrategyError};
use attach::Attach;
use targets::targets;

const NAME: &str = "Lora";

/// Trains two small factors beside each of some matrices, and freezes everything else.
///
/// Where a layer reads its weight W, `[in, out]`, it reads
///
/// ```text
/// W + α/r · A·B,   A [in, r],  B [r, out]
/// ```
///
/// with Burn's own adapters, so that no layer is written for it. A starts uniform within ±1/√in, as in PEFT,
/// drawn from the run's seed and the matrix's path; B starts at 0, so that the model starts as it was. The bias
/// and all other parameters are frozen, but for those that [`also`](Self::also) and [`fresh`](Self::fresh) name.
///
/// # Which matrices
///
/// Those that [`on`](Self::on) means; by default the projections of attention: the matrices of modules called
/// `query`, `key`, `value`, `query_key_value` (or `qkv`, `q_proj`, `k_proj`, `v_proj`), and of `output`
/// (`out_proj`, `o_proj`) beside one of these. These are all four of Burn's attention and of Firebrick's models;
/// the paper adapts two of them: `.on(["*.query.weight", "*.value.weight"])`. A tied matrix has one pair of
/// factors at all of its places.
///
/// # What is held
///
/// For Ψ parameters and ψ of factors, with AdamW, in bytes between two steps:
///
/// | | trained whole | with `Lora` |
/// |---|---|---|
/// | f32 | 16Ψ | 4Ψ + 16ψ |
/// | `Amp::bf16()` | 16Ψ | 6Ψ + 16ψ |
///
/// A step makes each adapted matrix anew, W + α/r · A·B, and keeps it from the forward to the backward pass, which
/// finds a gradient of its size on the way to those of the factors. [`Recompute`](crate::Recompute) keeps
/// those of one block at a time.
///
/// # What is saved
///
/// It acts before all other strategies, wherever it is written: optimizer, shards and checkpoints are those of
/// the adapted model, whose factors are called `PATH.lora.a` and `PATH.lora.b`. A run goes on from a checkpoint to
/// the bit. What a run returns, `model.safetensors`, `best.safetensors` and what `consolidate` writes is the
/// model as it was given, with W + α/r · A·B as its weights.
///
/// Factors learn at the rate and decay of their matrix's [group](crate::optim::Groups). A group of Burn's own that
/// names parameters by their ids does not know them.
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
    /// Factors of this rank, at least 1.
    pub fn rank(rank: usize) -> Self {
        Self {
            low_rank: LowRank { rank, alpha: rank as f64 },
            on: Vec::new(),
            also: Vec::new(),
            fresh: Vec::new(),
        }
    }

    /// Their product is scaled by this over the rank. Default: the rank, for a scale of 1.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { low_rank: LowRank { alpha, ..self.low_rank }, ..self }
    }

    /// Adapts the matrices that these [patterns](Paths) mean, each of which must mean one. Default: the
    /// projections of attention.
    pub fn on<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { on: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Trains what these [patterns](Paths) mean whole, such as a fresh head: `modules_to_save` of PEFT.
    pub fn also<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { also: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Trains what these [patterns](Paths) mean whole as well, unless something before has frozen it: parameters that
    /// have started anew, such as a head that a pretrained folder lacked. Frozen, they
    /// would stay what was drawn. A run file finds them by itself.
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
    type Stage = Adapting;

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

    fn start(&self, setup: &mut Setup<M>) -> Result<Adapting, StrategyError> {
        match reparameterized(setup.model()) {
            Some(_) => Ok(Adapting(self.low_rank)),
            None => Err(StrategyError::NotAdapted(NAME)),
        }
    }
}

/// The first parameter that is read as something else than what is stored.
fn reparameterized<M: Module>(model: &M) -> Option<String> {
    let paths = Paths::of(model);
    paths.places().iter().find_map(|place| place.reparameterizes.clone())
}

/// [`Lora`] at work: the factors are parameters like others.
#[derive(Clone, Copy, Debug)]
pub struct Adapting(LowRank);

impl<M> Stage<M> for Adapting {
    fn name(&self) -> &'static str {
        NAME
    }

    fn save(&self, states: &mut Vec<StageState>) {
        let LowRank { rank, alpha } = self.0;
        states.push(StageState::new(NAME).with("rank", rank as f64).with("alpha", alpha));
    }

    /// The factors that were saved mean what they do by the scale that they were trained with.
    fn restore(&mut self, states: &mut SavedStates) -> Result<(), StrategyError> {
        let saved = states.take(NAME)?;
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
