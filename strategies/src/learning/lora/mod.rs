//! LoRA: trains low-rank factors beside frozen matrices.
//!
//! Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2021 (arXiv:2106.09685); Kalajdzievski, *A Rank
//! Stabilization Scaling Factor for Fine-Tuning with LoRA*, 2023 (arXiv:2312.03732); Liu et al., *DoRA: Weight-Decomposed
//! Low-Rank Adaptation*, 2024 (arXiv:2402.09353).
//!
//! ```text
//! mod.rs      Lora: the recipe
//! targets.rs  the matrices that receive factors
//! start.rs    finds the parameters of values to start from
//! attach.rs   attaches the factors and freezes other parameters
//! factors.rs  LoraFactors: the factors beside a matrix
//! forward.rs  a linear layer with dropout on the input of its factors
//! ```

mod attach;
mod factors;
mod forward;
mod start;
mod targets;

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use serde::{Deserialize, Serialize};

use crate::effects::OnResult;
use crate::{
    Adaptation, Effects, LowRank, Paths, SettingError, Setup, Stage, StageState, Stages, Strategy,
    StrategyError, StrategyRecipe, params_of,
};
use attach::Attach;
use start::Start;
use targets::matrices_of;

pub use factors::LoraFactors;
pub use forward::{adapted_linear, undropped_linear};
pub use targets::Targets;

const NAME: &str = "Lora";

/// Trains two small factors beside each selected matrix, and freezes everything else.
///
/// Instead of its weight W, `[in, out]`, a layer reads
///
/// ```text
/// W + α/r · A·B,   A [in, r],  B [r, out]
/// ```
///
/// or W + α/√r · A·B if it is [rank-stabilized](Self::rank_stabilized), through a [`LoraFactors`] that is attached to the
/// parameter, so layers need no changes. A is initialized uniformly within ±1/√in, as in PEFT, from the run's seed and the matrix's path. B starts at
/// 0, so the adapted model initially equals the given one. Both start from given values instead if the [`Adaptation`]
/// has [some](Adaptation::starting_from). The bias
/// and all other parameters are frozen, except for those that you name in [`also`](Self::also) and
/// those that are [fresh](Adaptation::fresh).
///
/// # Which matrices
///
/// [`on`](Self::on) selects them. The default is the projections of attention: the matrices of modules called `query`,
/// `key`, `value`, `query_key_value` (or `qkv`, `q_proj`, `k_proj`, `v_proj`), and of `output` (`out_proj`, `o_proj`)
/// beside one of these. In Burn's attention and in Firebrick's models, these are all four projections. The paper adapts
/// two of them: `.on(["*.query.weight", "*.value.weight"])`. [`on_all_linear`](Self::on_all_linear) adapts the matrices
/// of all linear layers except the head, as QLoRA does (Dettmers et al., 2023, arXiv:2305.14314). A tied matrix has one
/// pair of factors at all of its places.
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
/// use firebrick_strategies::{Adaptation, Composition, Lora, LoraFactors, trained};
///
/// let model = LinearConfig::new(64, 32).init(&Device::flex().autodiff());
/// let mut adaptation = Adaptation::seeded(1);
/// let adapted = Lora::rank(4).alpha(8.0).on(["weight"]).adapt(model.clone(), &mut adaptation)?;
/// let trained: usize = trained(&adapted).iter().map(|one| one.shape.iter().product::<usize>()).sum();
/// assert_eq!(trained, 64 * 4 + 4 * 32);
/// assert_eq!(adapted.weight.val().into_data(), model.weight.val().into_data());
///
/// let merged = adaptation.give_back(adapted);
/// assert!(merged.weight.reparameterization::<LoraFactors>().is_none());
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Settings")]
pub struct Lora {
    rank: usize,
    alpha: f64,
    #[serde(skip_serializing_if = "is_false")]
    rank_stabilized: bool,
    #[serde(skip_serializing_if = "is_false")]
    dora: bool,
    #[serde(skip_serializing_if = "is_zero")]
    dropout: f64,
    #[serde(skip_serializing_if = "Targets::is_default")]
    targets: Targets,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<String>,
}

/// The settings in a run file, where `alpha` may be left out.
#[derive(Deserialize)]
#[serde(rename = "Lora", deny_unknown_fields)]
struct Settings {
    rank: usize,
    alpha: Option<f64>,
    #[serde(default)]
    rank_stabilized: bool,
    #[serde(default)]
    dora: bool,
    #[serde(default)]
    dropout: f64,
    #[serde(default)]
    targets: Targets,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    also: Vec<String>,
}

impl From<Settings> for Lora {
    fn from(settings: Settings) -> Self {
        let Settings { rank, alpha, rank_stabilized, dora, dropout, targets, paths, also } = settings;
        let alpha = alpha.unwrap_or(rank as f64);
        Self { rank, alpha, rank_stabilized, dora, dropout, targets, paths, also }
    }
}

fn is_false(setting: &bool) -> bool {
    !*setting
}

fn is_zero(setting: &f64) -> bool {
    *setting == 0.0
}

/// The name of the saved value that says that the scale is α/√r. Runs with α/r do not save it.
const STABILIZED: &str = "rank_stabilized";

/// The width of the widest models.
const MOST_RANK: usize = 65_536;

impl Lora {
    /// Creates a recipe for factors of this rank, at least 1.
    pub fn rank(rank: usize) -> Self {
        Self {
            rank,
            alpha: rank as f64,
            rank_stabilized: false,
            dora: false,
            dropout: 0.0,
            targets: Targets::default(),
            paths: Vec::new(),
            also: Vec::new(),
        }
    }

    /// Sets α: the product of the factors is scaled by `alpha / rank`. Default: the rank, for a scale of 1.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// Scales the product of the factors by `alpha / √rank`, so that gradients do not shrink as the rank grows
    /// (Kalajdzievski, 2023, arXiv:2312.03732): rsLoRA, `use_rslora` of PEFT. The default of α stays the rank.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::Device};
    /// use firebrick_strategies::{Adaptation, Composition, Lora, LoraFactors};
    ///
    /// let model = LinearConfig::new(64, 32).init(&Device::flex().autodiff());
    /// let lora = Lora::rank(16).alpha(8.0).rank_stabilized().on(["weight"]);
    /// let adapted = lora.adapt(model, &mut Adaptation::seeded(1))?;
    /// assert_eq!(adapted.weight.reparameterization::<LoraFactors>().unwrap().scale, 2.0);
    /// # Ok::<(), firebrick_strategies::StrategyError>(())
    /// ```
    pub fn rank_stabilized(self) -> Self {
        Self { rank_stabilized: true, ..self }
    }

    /// Trains the norms of the columns apart from their directions (DoRA: Liu et al., 2024, arXiv:2402.09353), `use_dora`
    /// of PEFT: a layer reads
    ///
    /// ```text
    /// m · (W + α/r · A·B) / ‖W + α/r · A·B‖,   m [out]
    /// ```
    ///
    /// The magnitudes m start as the norms of the columns of W, and the gradient treats the norm as a constant, as in
    /// PEFT. A step computes and keeps the sum besides what it is scaled to: about twice the memory that the matrices
    /// themselves take in a step of LoRA. Magnitudes are called `PATH.lora.magnitude`.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::Device};
    /// use firebrick_strategies::{Adaptation, Composition, Lora, trained};
    ///
    /// let model = LinearConfig::new(64, 32).init(&Device::flex().autodiff());
    /// let adapted = Lora::rank(4).dora().on(["weight"]).adapt(model.clone(), &mut Adaptation::seeded(1))?;
    /// let trained: usize = trained(&adapted).iter().map(|one| one.shape.iter().product::<usize>()).sum();
    /// assert_eq!(trained, 64 * 4 + 4 * 32 + 32);
    /// assert_eq!(adapted.weight.val().into_data(), model.weight.val().into_data());
    /// # Ok::<(), firebrick_strategies::StrategyError>(())
    /// ```
    pub fn dora(self) -> Self {
        Self { dora: true, ..self }
    }

    /// Drops elements of the input of the factors in training with this probability, at least 0 and below 1:
    /// `lora_dropout` of PEFT. Default: 0.
    ///
    /// A linear layer then computes `x·W + α/r · drop(x)·A·B`. Unlike without dropout, it computes `drop(x)·A·B` from
    /// left to right, and never the matrix W + α/r · A·B. The mask is that of [`Dropout`](crate::Dropout), so it is the
    /// same however the batch is cut, and in a resumed run. The factors of a table of embeddings have no input to drop,
    /// as in PEFT.
    ///
    /// The layers of Firebrick's models do so. Another layer must call [`adapted_linear`]; one that reads the weight
    /// itself, such as Burn's `Linear` or the output layer of a language model, is an error in the first pass.
    ///
    /// ```
    /// use firebrick_strategies::Lora;
    ///
    /// let lora = Lora::rank(16).alpha(32.0).dropout(0.1).on_all_linear();
    /// ```
    pub fn dropout(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    /// Adapts the matrices of all linear layers: [`Targets::AllLinear`]. You cannot combine it with [`on`](Self::on).
    pub fn on_all_linear(self) -> Self {
        Self { targets: Targets::AllLinear, ..self }
    }

    /// Adapts the matrices that these [patterns](Paths) match. Each pattern must match a matrix. Default: the
    /// projections of attention.
    pub fn on<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { paths: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Also trains the parameters that these [patterns](Paths) match, without factors: `modules_to_save` of PEFT.
    pub fn also<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { also: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    fn low_rank(&self) -> LowRank {
        LowRank { rank: self.rank, alpha: self.alpha, rank_stabilized: self.rank_stabilized, dora: self.dora }
    }
}

impl StrategyRecipe for Lora {
    fn effects(&self) -> Effects {
        let paths = self.paths.iter().chain(&self.also).cloned().collect();
        Effects { adapts: true, result: OnResult::Parameters, paths, ..Effects::none(NAME) }
    }

    fn check(&self) -> Result<(), SettingError> {
        let possible = (1..=MOST_RANK).contains(&self.rank);
        SettingError::require(possible, "rank", "at least 1 and at most 65536", self.rank)?;
        let possible = self.alpha > 0.0 && self.alpha.is_finite();
        SettingError::require(possible, "alpha", "finite and above 0", self.alpha)?;
        let possible = (0.0..1.0).contains(&self.dropout);
        SettingError::require(possible, "dropout", "at least 0 and below 1", self.dropout)?;
        let possible = self.targets.is_default() || self.paths.is_empty();
        let found = format!("{:?}", self.targets);
        SettingError::require(possible, "targets", "left out where `paths` is given", found)
    }
}

impl<M: Module> Strategy<M> for Lora {
    fn adapted(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        if adaptation.low_rank().is_some() {
            return Err(StrategyError::Twice(NAME));
        }
        if let Some(parameter) = reparameterized(&model) {
            return Err(StrategyError::Reparameterized { strategy: NAME, parameter });
        }
        let paths = Paths::of(&model);
        let mut also = params_of(NAME, &self.also, &paths)?;
        let fresh = params_of(NAME, adaptation.fresh(), &paths)?;
        also.extend(fresh.into_iter().filter(|id| !adaptation.is_frozen(*id)));
        let mut targets = matrices_of(&model, &paths, self.targets, &self.paths)?;
        targets.retain(|target| !also.contains(target));
        if targets.is_empty() {
            let expected = "matrices, some of which `also` does not train whole";
            let (setting, found) = ("paths", "none".into());
            return Err(StrategyError::setting(
                NAME,
                SettingError { setting, expected: expected.into(), found },
            ));
        }
        let start = match adaptation.take_start() {
            Some(given) => Start::of(&given, self.low_rank(), (&model, &paths), (&targets, &also))?,
            None => Start::default(),
        };
        let undropped = embeddings(&paths, &targets);
        if self.dropout > 0.0
            && let Some(parameter) = of_layer(&paths, &undropped)
        {
            return Err(StrategyError::DropsEmbedding { parameter });
        }
        adaptation.attach(self.low_rank(), self.dropout);
        let attach = Attach::new(self.low_rank(), (targets, also, undropped), adaptation);
        Ok(model.apply_reparameterization(attach.starting_from(start)))
    }

    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        match reparameterized(setup.model()) {
            Some(_) => Ok(Stages::of(Adapting(self.low_rank()))),
            None => Err(StrategyError::NotAdapted(NAME)),
        }
    }
}

/// Returns the adapted matrices that are tables of embeddings.
fn embeddings(paths: &Paths, targets: &HashSet<ParamId>) -> HashSet<ParamId> {
    let places = paths.places().iter().filter(|place| targets.contains(&place.id) && place.is_of_embedding());
    places.map(|place| place.id).collect()
}

/// Returns the first path of a table of embeddings at which another layer reads it, if any.
fn of_layer(paths: &Paths, embeddings: &HashSet<ParamId>) -> Option<String> {
    let tied = paths.places().iter().find(|place| embeddings.contains(&place.id) && !place.is_of_embedding());
    tied.map(|place| place.path.clone())
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
        let LowRank { rank, alpha, rank_stabilized, .. } = self.0;
        let state = state.with("rank", rank as f64).with("alpha", alpha);
        if rank_stabilized { state.with(STABILIZED, 1.0) } else { state }
    }

    /// Checks the scale: saved factors are only valid with the rank and alpha that they were trained with.
    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
        let (rank, alpha) = (saved.get("rank")?, saved.get("alpha")?);
        let rank_stabilized = saved.get(STABILIZED).is_ok();
        if rank_stabilized != self.0.rank_stabilized {
            let (setting, found) = ("rank_stabilized", self.0.rank_stabilized.to_string());
            let expected = format!("{rank_stabilized}, as in the saved run").into();
            return Err(StrategyError::setting(NAME, SettingError { setting, expected, found }));
        }
        if (rank, alpha) == (self.0.rank as f64, self.0.alpha) {
            return Ok(());
        }
        let found = format!("alpha {} of rank {}, where it was {alpha} of {rank}", self.0.alpha, self.0.rank);
        let (setting, expected) = ("alpha", "as in the saved run");
        Err(StrategyError::setting(NAME, SettingError { setting, expected: expected.into(), found }))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
