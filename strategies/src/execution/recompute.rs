//! Activation recompute: less memory for one more forward pass.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use serde::{Deserialize, Serialize};

use crate::effects::{RecomputedBlocks, Recomputes};
use crate::{
    Effects, ParamMap, SettingError, Setup, Stage, Stages, Strategy, StrategyError, StrategyRecipe, Which,
    map_params,
};
use firebrick_kernels::memory::Usage;
use firebrick_world::host_device;

/// Drops a block's activations after the forward pass and computes them again in the backward pass.
///
/// The unit is the [segment](crate::Pass::segment) that a model opens around each of its blocks: a recomputed segment
/// keeps only its inputs. On the CPU the gradients are bit-identical to those of a run without recompute, because the
/// same operations run on the same values, dropout included. The one exception is a tensor or parameter that is read
/// both in a segment and outside it: its gradient terms are summed in another order.
///
/// With `n` equal segments whose operations save `a` bytes each and whose input is `i` bytes:
///
/// | recipe | activations held | extra work |
/// |---|---|---|
/// | none | `n·a` | none |
/// | [`every_block()`](Self::every_block) | `n·i + a` | one forward pass |
/// | [`every(2)`](Self::every) | `n·a/2 + n·i/2 + a` | half a forward pass |
/// | [`within(bytes)`](Self::within) | at most `bytes`, plus `a` while a segment is recomputed | as little as fits |
/// | [`every_block().offloaded()`](Self::offloaded) | `a`; `n·i` on the host | one forward pass, `n·i` moved twice |
/// | [`elementwise()`](Self::elementwise) | the inputs of matrix products | the operations between them |
///
/// A forward pass is about a third of a step, so recomputing everything takes about 4/3 of the time (Chen et al., 2016,
/// arXiv:1604.06174); less if a block marks its [end](crate::Pass::end_of_segment), whose product is not computed again on
/// the CPU. Burn's graph takes about 0.1 MB per block in addition.
///
/// It works on Flex and on the backends that run CubeCL kernels: CUDA, wgpu, Vulkan.
///
/// The result of a block must be a function of its inputs, its parameters and the pass. A block with Burn's `Dropout`,
/// for example, cannot be recomputed. The first backward pass compares both results, and a block that contains a random
/// or stateful module is compared in each backward pass. If more than one element in a thousand differs, the run ends
/// with an error that names the block. [`Dropout`](crate::Dropout) drops the same elements again. Burn's batch
/// normalization would count a batch twice in its running statistics: exclude it from recomputation.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// use firebrick_strategies::{Composition, Pass, Recompute, Setup};
///
/// let device = Device::flex().autodiff();
/// let blocks: Vec<Linear> = (0..3).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let gradient = |pass: &Pass| {
///     let x = Tensor::<2>::ones([4, 8], &device);
///     let run = |block: &Linear, x: Tensor<2>, _: &Pass| block.forward(x).tanh();
///     let y = blocks.iter().fold(x, |x, block| pass.segment(block, x, run));
///     let grads = y.sum().backward();
///     blocks[0].weight.grad(&grads).unwrap().into_data()
/// };
///
/// let mut setup = Setup::new(&blocks, &device);
/// Recompute::every_block().start(&mut setup)?;
/// let pass = setup.into_pass();
/// assert_eq!(gradient(&pass), gradient(&Pass::train(&device)));
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recompute {
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<usize>,
    #[serde(skip_serializing_if = "is_false")]
    elementwise: bool,
    #[serde(skip_serializing_if = "is_false")]
    offloaded: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Recompute {
    /// Recomputes every segment.
    pub fn every_block() -> Self {
        Self::every(1)
    }

    /// Recomputes the first of every `count` segments: all with 1, every other with 2.
    pub fn every(count: usize) -> Self {
        Self { every: Some(count), ..Self::default() }
    }

    /// Recomputes the segments whose block matches one of these [paths](crate::Paths) of the model, such as `blocks.*`.
    pub fn paths<T: Into<String>>(paths: impl IntoIterator<Item = T>) -> Self {
        Self { paths: Some(paths.into_iter().map(Into::into).collect()), ..Self::default() }
    }

    /// Recomputes as few segments as possible, so that all segments together hold at most `bytes` from the forward to
    /// the backward pass.
    ///
    /// Segments are measured during training: in the first backward pass, and again when the input of a segment is
    /// larger than before. A segment is recomputed until it is measured. Activations outside segments, such as
    /// embeddings and logits, are not part of the budget.
    pub fn within(bytes: usize) -> Self {
        Self { within: Some(bytes), ..Self::default() }
    }

    /// Uses Burn's own scheme: keeps the inputs of matrix products, and recomputes the element-wise operations between
    /// them. Needs no segments.
    pub fn elementwise() -> Self {
        Self { elementwise: true, ..Self::default() }
    }

    /// Moves the kept inputs to host memory, and back when their segment is recomputed. Masks and indices, which blocks
    /// share, stay on the device.
    pub fn offloaded(self) -> Self {
        Self { offloaded: true, ..self }
    }

    /// Returns what runs again.
    fn blocks(&self) -> RecomputedBlocks {
        match (self.every, &self.paths, self.within) {
            (Some(count), ..) => RecomputedBlocks::Every(count),
            (_, Some(paths), _) => RecomputedBlocks::Paths(paths.clone()),
            (.., Some(bytes)) => RecomputedBlocks::Within(bytes),
            _ => RecomputedBlocks::Elementwise,
        }
    }
}

impl StrategyRecipe for Recompute {
    fn effects(&self) -> Effects {
        let recomputes = Recomputes { blocks: self.blocks(), offloaded: self.offloaded };
        let paths = self.paths.clone().unwrap_or_default();
        Effects { recomputes: Some(recomputes), paths, ..Effects::none("Recompute") }
    }

    fn check(&self) -> Result<(), SettingError> {
        let ways = [self.every.is_some(), self.paths.is_some(), self.within.is_some(), self.elementwise];
        let given = ways.into_iter().filter(|is_given| *is_given).count();
        let expected = "one of (every: 1), (paths: [..]), (within: bytes) and (elementwise: true)";
        SettingError::require(given == 1, "", expected, format!("{given} of them"))?;
        SettingError::require(self.every != Some(0), "every", "at least 1", 0)?;
        let none = self.paths.as_ref().is_some_and(Vec::is_empty);
        SettingError::require(!none, "paths", "at least one path", "[]")?;
        SettingError::require(self.within != Some(0), "within", "at least 1 byte", 0)?;
        let expected = "left out with `elementwise`, which keeps no inputs of blocks";
        SettingError::require(!(self.elementwise && self.offloaded), "offloaded", expected, "given")
    }
}

impl<M: Module> Strategy<M> for Recompute {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let which = match &self.blocks() {
            RecomputedBlocks::Elementwise => {
                setup.segments_mut().recompute_elementwise();
                return Ok(Stages::of(Recomputing { elementwise: true }));
            }
            RecomputedBlocks::Every(count) => Which::Every(*count),
            RecomputedBlocks::Paths(patterns) => Which::Paths(modules(patterns, setup)?),
            RecomputedBlocks::Within(_) if Usage::of(setup.device()).is_none() => {
                return Err(StrategyError::NothingCounts("Recompute::within"));
            }
            RecomputedBlocks::Within(bytes) => Which::within(*bytes),
        };
        let host = self.offloaded.then(host_device);
        setup.segments_mut().recompute(which, host);
        Ok(Stages::of(Recomputing { elementwise: false }))
    }
}

fn modules<M>(patterns: &[String], setup: &Setup<M>) -> Result<HashSet<String>, StrategyError> {
    let mut modules = HashSet::new();
    for pattern in patterns {
        let found = setup.segments().paths().modules_matching(pattern);
        let found = found.map_err(|error| StrategyError::Path { strategy: "Recompute", error })?;
        modules.extend(found.into_iter().map(str::to_string));
    }
    Ok(modules)
}

/// The live state of [`Recompute`], which does not change gradients.
#[derive(Debug)]
struct Recomputing {
    elementwise: bool,
}

impl<M: Module> Stage<M> for Recomputing {
    fn name(&self) -> &'static str {
        "Recompute"
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        Ok(if self.elementwise { map_params(model, &mut CheckpointBalanced) } else { model })
    }
}

/// Puts Burn's checkpointing scheme on the parameters, since Burn reads it from tensors.
struct CheckpointBalanced;

impl ParamMap for CheckpointBalanced {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        let required = value.is_require_grad();
        let leaf = Tensor::from_inner(value.inner());
        let leaf = leaf.with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced);
        leaf.set_require_grad(required)
    }
}
