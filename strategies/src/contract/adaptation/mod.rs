//! The changes that strategies make to a model before training, and how they are undone.
//!
//! ```text
//! mod.rs               Adaptation: the changes
//! starting_factors.rs  low-rank factors to start from
//! packed_base.rs       the packed values of a frozen matrix, and how they are read
//! read_whole.rs        what a layer has read whole although its factors have a dropout
//! ```

mod packed_base;
mod read_whole;
mod starting_factors;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::packed::PackedMatrix;
use firebrick_world::{Communicator, host_device};

use crate::model_parallel::Factors;
use crate::{LowRank, ModelParts, Paths, Pipelined, SharedAxis, StrategyError, TensorPlan, apart, learns};

pub use packed_base::PackedBase;
pub(crate) use read_whole::ReadWhole;
pub use starting_factors::{FactorValues, StartingFactors};

/// The changes that strategies have made to a model before training: the parameters that they have frozen, and the
/// scale of the low-rank factors that they have attached.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Adaptation, Composition, Freeze, trained};
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
    fresh: Vec<String>,
    /// The ranks of the run.
    world: Option<Communicator>,
    tensor_plan: TensorPlan,
    /// What each block costs, if that was measured.
    block_costs: Option<Vec<usize>>,
    parts: Option<Arc<ModelParts>>,
    start: Option<Arc<StartingFactors>>,
    /// Frozen parameters that required a gradient in the given model.
    frozen: HashSet<ParamId>,
    low_rank: Option<LowRank>,
    /// The dropout on the input of the factors.
    dropout: f64,
    /// What a layer has read whole although its factors have a dropout.
    read_whole: ReadWhole,
    /// Parameters that are trained whole beside factors.
    whole: HashSet<ParamId>,
    /// The packed values of matrices, empty where a matrix is not packed.
    bases: HashMap<ParamId, PackedBase>,
    factors: Factors,
}

impl Adaptation {
    /// Creates an adaptation without changes. Random initial values are a function of this seed.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Sets the patterns of newly initialized parameters, such as a head that a pretrained folder lacked. A strategy
    /// that freezes the rest of the model trains them whole: frozen, they would keep their random values.
    pub fn with_fresh(self, fresh: impl Into<Vec<String>>) -> Self {
        Self { fresh: fresh.into(), ..self }
    }

    /// Sets the communicator of a rank that is one of several.
    pub fn among(self, world: Communicator) -> Self {
        Self { world: Some(world), ..self }
    }

    /// Sets the plan by which ranks may divide the model's layers.
    pub fn with_tensor_plan(self, tensor_plan: TensorPlan) -> Self {
        Self { tensor_plan, ..self }
    }

    /// Sets what each block of the model costs, such as the time that it takes, for [stages](crate::StageBalance) that are to cost the
    /// same. Default: its parameters.
    pub fn with_block_costs(self, block_costs: Option<Vec<usize>>) -> Self {
        Self { block_costs, ..self }
    }

    /// Returns this rank's communicator, if it is one of several.
    pub(crate) fn world(&self) -> Option<&Communicator> {
        self.world.as_ref()
    }

    /// Divides a model among these ranks: layers by the model's plan, and blocks into the stages of a pipeline.
    ///
    /// # Errors
    ///
    /// The model has no plan, the ranks do not divide its layers or its blocks, or what has [adapted](Self::require_divisible) it.
    pub(crate) fn divide<M: Module>(
        &mut self,
        model: M,
        ranks: Communicator,
        pipeline: &Pipelined,
    ) -> Result<M, StrategyError> {
        self.require_divisible(ranks.size() > pipeline.ranks)?;
        let costs = self.block_costs.as_deref();
        let parts = ModelParts::of(&model, &self.tensor_plan, ranks, pipeline, costs, &self.factors)?;
        let parts = Arc::new(parts);
        self.parts = Some(parts.clone());
        Ok(parts.cut(model))
    }

    /// Rejects a model whose matrices cannot be divided among the ranks of a pipeline, or of a `tensor` axis too.
    ///
    /// # Errors
    ///
    /// [`StrategyError::NotWithParts`].
    pub fn require_divisible(&self, tensor: bool) -> Result<(), StrategyError> {
        let dora = self.low_rank.is_some_and(|low_rank| low_rank.dora);
        let refused = [
            (self.quantized().next().is_some(), "Quantize, whose packed matrices are not divided"),
            (tensor && dora, "`dora` of Lora, which takes the norms of whole columns"),
        ];
        match refused.into_iter().find(|(is_there, _)| *is_there) {
            Some((_, what)) => Err(StrategyError::NotWithParts(what)),
            None => Ok(()),
        }
    }

    /// Returns the parts of the model that ranks hold, if they divide it.
    pub fn parts(&self) -> Option<&Arc<ModelParts>> {
        self.parts.as_ref()
    }

    /// Sets values that the factors of [`Lora`](crate::Lora) start from, instead of new ones.
    pub fn starting_from(self, start: Option<Arc<StartingFactors>>) -> Self {
        Self { start, ..self }
    }

    /// Returns the values that factors start from, if a strategy has not taken them yet.
    pub fn take_start(&mut self) -> Option<Arc<StartingFactors>> {
        self.start.take()
    }

    /// Returns the patterns of newly initialized parameters.
    pub fn fresh(&self) -> &[String] {
        &self.fresh
    }

    /// Returns the run's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the rank and scale of the attached factors, if any.
    pub fn low_rank(&self) -> Option<LowRank> {
        self.low_rank
    }

    /// Returns whether this parameter is trained whole beside factors.
    pub fn is_whole(&self, parameter: ParamId) -> bool {
        self.whole.contains(&parameter)
    }

    /// Returns whether a strategy has frozen this parameter.
    pub fn is_frozen(&self, parameter: ParamId) -> bool {
        self.frozen.contains(&parameter)
    }

    /// Returns the dropout on the input of the attached factors: 0 without one.
    pub fn dropout(&self) -> f64 {
        self.dropout
    }

    /// Declares that factors of this rank and scale, with this dropout on their input, are attached to matrices.
    pub fn attach(&mut self, low_rank: LowRank, dropout: f64) {
        self.low_rank = Some(low_rank);
        self.dropout = dropout;
    }

    /// Declares that a factor is attached to a matrix.
    pub(crate) fn attach_factor(&mut self, factor: ParamId, shared: SharedAxis) {
        self.factors.insert(factor, shared);
    }

    /// Returns the axis that a factor shares with its matrix, or `None` for another parameter.
    pub fn shared_axis(&self, factor: ParamId) -> Option<SharedAxis> {
        self.factors.get(&factor).copied()
    }

    /// Checks whether the factors are of matrices whose gradients are summed over the ranks that a plan divides layers among.
    ///
    /// # Errors
    ///
    /// [`StrategyError::FactorsOutsideBlocks`], or a path of the plan matches nothing.
    pub fn require_factors_in_blocks<M: Module>(
        &self,
        model: &M,
        plan: &TensorPlan,
    ) -> Result<(), StrategyError> {
        plan.require_factors_in_blocks(&Paths::of(model), &self.factors)
    }

    /// Returns where the packed values of a matrix are, or are to be.
    pub(crate) fn base_of(&mut self, parameter: ParamId) -> PackedBase {
        self.bases.entry(parameter).or_default().clone()
    }

    /// Returns the parameters that [`Quantize`](crate::Quantize) has packed, in no particular order.
    pub fn quantized(&self) -> impl Iterator<Item = (ParamId, PackedMatrix)> {
        self.bases.iter().filter_map(|(id, base)| Some((*id, base.get()?)))
    }

    /// Returns the packed values of parameters, which their copies share.
    pub fn packed_bases(&self) -> HashMap<ParamId, PackedBase> {
        let packed = self.bases.iter().filter(|(_, base)| base.get().is_some());
        packed.map(|(id, base)| (*id, base.clone())).collect()
    }

    /// Returns the bytes of all packed matrices.
    pub fn quantized_bytes(&self) -> usize {
        self.quantized().map(|(_, matrix)| matrix.bytes()).sum()
    }

    /// Moves the packed matrices to a device.
    pub fn place_quantized(&self, device: &Device) {
        self.bases.values().for_each(|base| base.place(device));
    }

    /// Checks that all ranks have packed the same values. Every rank calls it.
    ///
    /// # Errors
    ///
    /// [`StrategyError::OtherBase`], or another rank is gone.
    pub fn require_same_quantized(&self, world: &Communicator) -> Result<(), StrategyError> {
        // A hash of each matrix; a sum does not depend on their order.
        let own = self.quantized().map(|(_, matrix)| matrix.to_host().digest()).fold(0, u64::wrapping_add);
        // 48 bits, which an f64 holds exactly.
        let all = world.numbers("the packed matrices", &[(own >> 16) as f64])?;
        let mut all = all.iter().flatten();
        let first = all.next();
        match all.all(|digest| Some(digest) == first) {
            true => Ok(()),
            false => Err(StrategyError::OtherBase),
        }
    }

    pub(crate) fn read_whole(&self) -> &ReadWhole {
        &self.read_whole
    }

    /// Checks that all layers so far have dropped the input of their factors as the strategies say. Call it after a
    /// pass that trained.
    ///
    /// # Errors
    ///
    /// [`StrategyError::NothingDropped`].
    pub fn check(&self) -> Result<(), StrategyError> {
        self.read_whole.check()
    }

    /// Returns the parameter without a gradient.
    pub fn freeze<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if learns(&param) {
            self.frozen.insert(param.id);
        }
        apart(param).set_require_grad(false)
    }

    /// Returns the parameter with a gradient, to be trained beside factors.
    pub fn train<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.whole.insert(param.id);
        apart(param).set_require_grad(true)
    }

    /// Undoes the changes on a trained model and keeps its values: unpacks matrices, merges factors into them, and lets
    /// frozen parameters require a gradient again if they did originally. If matrices were packed, the model is in host
    /// memory, since its device may lack room.
    pub fn give_back<M: Module>(&self, model: M) -> M {
        struct Thaw<'a>(&'a HashSet<ParamId>);
        impl ModuleMapper for Thaw<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if self.0.contains(&param.id) { param.set_require_grad(true) } else { param }
            }
        }
        let is_packed = self.quantized().next().is_some();
        let model = if is_packed { model.to_device(&host_device()) } else { model };
        let model = if is_packed || self.low_rank.is_some() { model.materialize() } else { model };
        if self.frozen.is_empty() { model } else { model.map(&mut Thaw(&self.frozen)) }
    }
}

/// Returns the parameters that a strategy's patterns match.
pub fn params_of<'a>(
    strategy: &'static str,
    patterns: impl IntoIterator<Item = &'a String>,
    paths: &Paths,
) -> Result<HashSet<ParamId>, StrategyError> {
    let mut found = HashSet::new();
    for pattern in patterns {
        let params = paths.params_matching(pattern);
        found.extend(params.map_err(|error| StrategyError::Path { strategy, error })?);
    }
    Ok(found)
}
