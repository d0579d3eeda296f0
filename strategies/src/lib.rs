//! Training strategies for Burn models, one per technique.
//!
//! A strategy of the first kind says how a step is executed: it changes memory, speed or the number of machines, and the result
//! stays the same within a stated tolerance. One of the second kind says what is learned. They compose, in any order of the
//! lines.
//!
//! Below it are two crates that know nothing of strategies: [`firebrick_world`], the ranks and their collectives, and
//! [`firebrick_kernels`], tensor operations and what measures memory. Models, data and the training loop are above it.
//!
//! ```text
//! conformance/  the laws that every strategy obeys, as checks
//! learning/     strategies that change what is learned: Clip, SkipOutliers, Freeze, Lora, Quantize, Ema
//! execution/    strategies that change how a step is executed: Accumulate, Amp, Zero, Offload, Recompute, Mesh,
//!               KeepPadding
//! cost/         the bytes that a composition holds and sends, computed without the model
//! optim/        AdamW, Lion and SGD in one pass over memory, AdamW in 8 bits, Adafactor, LAMB, and parameter groups
//! contract/     what a strategy is, and how several work together: Strategy, Stage, Effects, Composition
//! registry/     recipes by the names that they have in run files
//! pass/         one forward pass: its mode, the segment around each block, and dropout
//! grads/        gradients on their way to the optimizer, with the facts known about them, and what happens to them
//! model_parallel/
//!               the layers and blocks of a model that ranks divide, the parts that each holds, and the order of a pipeline's passes
//! sharding/     how the ranks divide parameters, gather them again, and sum gradients
//! moving.rs     flat tensors on their way: buckets, and moves to the host beside the computation
//! dtypes.rs     the float dtypes: their names, and which ones a device supports
//! error/        the errors of a strategy or of a composition
//! params/       the parameters of a model: looks, maps, paths, and low-rank factors
//! ```
//!
//! A folder imports from those below it in this list only, never from those above.
//!
//! # Master and replica
//!
//! The **master** is the copy of the parameters that the optimizer updates; the **replica** is the copy that the
//! forward pass reads. A strategy is a pair of opposite maps between the two: it [publishes](Stage::publish) the master
//! as a replica after each update, and it [collects](Stage::collect) the replica's gradients as gradients of the
//! master. Without strategies both are the same tensors, at no extra cost.
//!
//! # Order, with numbers
//!
//! Gradients pass through the strategies in one [order](Order), whatever order you write them in: first those that execute the
//! step, then those that transform the gradients of the whole update, as they are written. `publish` runs in the opposite
//! order. For Ψ parameters, between two micro-batches:
//!
//! | composition | held | the norm is that of |
//! |---|---|---|
//! | `Accumulate(8)`, `Clip::norm(1.0)` | 4Ψ bytes, f32 | the mean gradient of all micro-batches |
//! | `Amp::bf16()`, `Accumulate(8)`, `Clip::norm(1.0)` | 4Ψ bytes, f32: sums are never kept in bf16 | the same |
//! | `Amp::f16()`, `Accumulate(8)`, `Clip::norm(1.0)` | 4Ψ bytes, f32 | the same, without the loss scale |
//!
//! # Writing a strategy
//!
//! A strategy is a small, cloneable recipe: [`StrategyRecipe`] says what it does and checks its settings, and
//! [`Strategy::stages`] turns it into a [`Stage`] that holds the state that changes during the run. The stage
//! implements the methods that it needs; by default they change nothing. This example changes gradients and has a value to save.
//! It skips an update if the gradient norm is far above its running mean, as after a bad batch:
//!
//! ```
//! use burn::module::Module;
//! use firebrick_strategies::*;
//!
//! /// Skips an update whose gradient norm exceeds `times` the running mean of the norms.
//! #[derive(Clone, Debug)]
//! struct SkipSpikes { times: f64 }
//!
//! /// The live state: the running mean.
//! struct Watching { times: f64, mean: Option<f64> }
//!
//! impl StrategyRecipe for SkipSpikes {
//!     fn effects(&self) -> Effects {
//!         Effects::of("SkipSpikes")
//!     }
//! }
//!
//! impl<M: Module> Strategy<M> for SkipSpikes {
//!     fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
//!         Ok(Stages::of(Watching { times: self.times, mean: None }))
//!     }
//! }
//!
//! impl<M: Module> Stage<M> for Watching {
//!     fn name(&self) -> &'static str { "SkipSpikes" }
//!
//!     fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
//!         let norm = grads.norm(master)?.into_scalar::<f64>();
//!         let mean = *self.mean.get_or_insert(norm);
//!         // A spike moves the mean too, up to a bound, so a lasting change does not skip forever.
//!         self.mean = Some(0.9 * mean + 0.1 * norm.min(self.times * mean));
//!         if norm > self.times * mean {
//!             let why = format!("gradient norm {norm:.3}, usually {mean:.3}");
//!             return Ok(Outcome::Skip(SkipReason::Other(why)));
//!         }
//!         Ok(Outcome::Apply(grads))
//!     }
//!
//!     fn save(&self, state: StageState) -> StageState {
//!         state.with("mean", self.mean.unwrap_or(f64::NAN))
//!     }
//!
//!     fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
//!         let mean = saved.get("mean")?;
//!         self.mean = (!mean.is_nan()).then_some(mean);
//!         Ok(())
//!     }
//! }
//!
//! # use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
//! let device = Device::flex().autodiff();
//! let model = LinearConfig::new(2, 1).init(&device);
//! let composed = Composed::new().with(Accumulate(2)).with(SkipSpikes { times: 3.0 });
//! let mut stages = composed.start(&mut Setup::new(&model, &device))?;
//!
//! // Two micro-batches make an optimizer step: the stage holds the first, and the second completes it.
//! let mut step = |scale: f64| {
//!     let mut collect = |closes| {
//!         let x = Tensor::<2>::ones([4, 2], &device) * scale;
//!         let grads = model.forward(x).sum().backward();
//!         stages.collect(&model, Grads::new(GradientsParams::from_grads(grads, &model), closes))
//!     };
//!     assert!(matches!(collect(false), Ok(Outcome::Hold)));
//!     collect(true)
//! };
//! assert!(matches!(step(1.0)?, Outcome::Apply(_)));
//! assert!(matches!(step(1.1)?, Outcome::Apply(_)));
//! assert!(matches!(step(90.0)?, Outcome::Skip(_)));
//! # Ok::<(), StrategyError>(())
//! ```
//!
//! In a test, [`conformance::check`] runs the laws that all strategies obey on yours.

pub mod conformance;
mod contract;
pub mod cost;
mod dtypes;
mod error;
mod execution;
mod grads;
mod learning;
mod model_parallel;
mod moving;
pub mod optim;
mod params;
mod pass;
pub mod registry;
mod sharding;
#[cfg(test)]
mod testing;

pub use contract::{
    Adaptation, Composed, Composition, Effects, FactorValues, NamedStrategy, Offloads, OnDisk, Order,
    PackedBase, Publishes, SavedNumber, SavedStates, Setup, Stage, StageState, Stages, StartingFactors,
    Strategies, Strategy, StrategyRecipe, effects, params_of,
};
pub use dtypes::{Float, cast_params, float_name, require_dtype, supported_floats};
pub use error::{SettingError, StrategyError};
pub use execution::{
    Accumulate, AccumulateIn, Amp, Keep, KeepPadding, LossScale, Mesh, Offload, Recompute, Zero,
};
pub use firebrick_kernels::Draws;
pub use firebrick_world::{Communicator, World, WorldError, host_device};
pub use grads::{Agreed, Agreement, GradMap, Grads, Outcome, Settled, SkipReason};
pub use learning::{
    Clip, Ema, Freeze, Lora, LoraFactors, Quantize, SkipOutliers, Targets, adapted_linear, undropped_linear,
};
pub use model_parallel::{
    ModelPart, ModelParts, OwnTokens, Pipeline, PipelineSchedule, PipelineStep, Pipelined, SharedAxis,
    StageBalance, TensorPlan,
};
pub use params::{
    AnyParam, LowRank, ParamMap, ParamPlace, PathError, Paths, Trained, UnfitFactors, apart,
    each_distinct_param, each_param, learns, map_params, relift, tie, tied, trained, trained_here, untie,
    values_on_host, with_values,
};
pub use pass::{
    Bundle, ContextColumns, Dropout, OffloadedParam, OffloadedParams, OffloadedRead, Pass, SegmentPlan,
    TensorMap, Units, Which,
};
pub use sharding::{Part, Reduces, Rows, Shard, Sharding};

impl<M: burn::module::Module + 'static> registry::Registered for dyn Strategy<M> {
    const KIND: &'static str = "a strategy";

    fn built_in() -> Strategies<M> {
        Strategies::default()
            .strategy::<Amp>("Amp")
            .strategy::<Accumulate>("Accumulate")
            .strategy::<AccumulateIn>("AccumulateIn")
            .strategy::<Clip>("Clip")
            .strategy::<Recompute>("Recompute")
            .strategy::<Ema>("Ema")
            .strategy::<Zero>("Zero")
            .strategy::<Offload>("Offload")
            .strategy::<Lora>("Lora")
            .strategy::<Quantize>("Quantize")
            .strategy::<Freeze>("Freeze")
            .strategy::<SkipOutliers>("SkipOutliers")
            .strategy::<KeepPadding>("KeepPadding")
            .strategy::<Mesh>("Mesh")
    }
}
