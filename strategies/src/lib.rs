//! Training strategies for Burn models, one per technique.
//!
//! A strategy changes the memory, the speed or the number of machines that training takes. The result stays the same
//! within a stated tolerance. Strategies compose, in any order of the lines.
//!
//! Below it are two crates that know nothing of strategies: [`firebrick_world`], the ranks and their collectives, and
//! [`firebrick_kernels`], tensor operations and what measures memory. Models, data and the training loop are above it.
//!
//! ```text
//! strategy.rs    Strategy: the recipe of a technique
//! composition.rs Composition: one strategy or several, as the trainer uses them
//! stage.rs       Stage: the live state of a strategy
//! stages.rs      Stages: the live state of a composition, the only code that runs through its stages
//! shard.rs       the part of a parameter that a rank holds
//! adaptation/    the changes that strategies make to a model before training, and how they are undone
//! low_rank.rs, starting_factors.rs  the rank and scale of low-rank factors, and factors to start from
//! effects.rs     Effects: what a strategy does to gradients, memory and traffic, as far as others must know
//! order.rs       Order: the effects of a composition, in the order in which gradients pass
//! cost/          the bytes that a composition holds and sends, computed without the model
//! setup.rs       what a strategy sees when it starts
//! outcome.rs     what happens to gradients: apply, hold, skip
//! agreement.rs   what the ranks tell each other about a window, once
//! grads/         gradients on their way to the optimizer, with the facts known about them
//! each_param.rs  a look at each parameter of a model, whatever its rank
//! params.rs      maps over a model's parameters that keep tied parameters tied, and which are trained
//! paths.rs       the paths of a model's parameters, and the patterns that select them
//! pass.rs        one forward pass: its mode, and the segment around each block
//! segment/       the segment around each block: its plan, and its recomputation
//! recompute.rs   Recompute: drops a block's activations and computes them again
//! dropout.rs     Dropout: a mask that is a function of each element's position
//! composed.rs    Composed: a list of strategies, which a trainer has; Option and Vec
//! named_strategies.rs  the strategies that a run file can name
//! amp/           Amp: half-precision replica and activations over an f32 master, and the loss scale
//! dtypes.rs      the float dtypes: their names, and which ones a device supports
//! registry/      recipes by the names that they have in run files
//! optim/         AdamW, Lion and SGD in one pass over memory, AdamW in 8 bits, Adafactor, LAMB, and parameter groups
//! accumulate.rs  Accumulate: sums micro-batches into one window
//! keep_padding.rs  KeepPadding: computes padding, for comparison
//! freeze.rs      Freeze: excludes parameters from training
//! lora/          Lora: low-rank factors beside frozen matrices
//! quantize/      Quantize: keeps frozen matrices in 4 or 8 bits
//! ema.rs         Ema: an average of the weights over the updates
//! clip.rs        Clip: bounds the gradient's norm or its elements
//! skip_outliers.rs  SkipOutliers: skips an update whose gradient norm is an outlier
//! zero/          Zero: data-parallel training with sharded state
//! buckets.rs     runs of tensors that are on their way together
//! moving.rs      moves of tensors to the host, which begin beside the computation
//! offload/       Offload: keeps the master and the moments, optionally the replica too, in host memory or on a disk
//! conformance/   the laws that every strategy obeys, as checks
//! state.rs       what a stage saves and restores
//! saved_number.rs  a float in it
//! error.rs       the errors of a strategy or of a composition
//! once.rs        a setting of a run file that may stand there once
//! setting.rs     the error for a setting that is out of range
//! ```
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
//! Gradients pass through the strategies in the order in which you write them, unless one must find the work of another done:
//! then the other one comes [first](Order). `publish` runs in the opposite order. For Ψ parameters, between two micro-batches of a window:
//!
//! | composition | held during the window | the norm is that of |
//! |---|---|---|
//! | `Amp::bf16()`, `Accumulate(8)`, `Clip::norm(1.0)` | 4Ψ bytes, f32 | the mean gradient of the whole window |
//! | `Accumulate(8)`, `Amp::bf16()`, `Clip::norm(1.0)` | 4Ψ bytes, f32: sums are never kept in bf16 | the same gradient, bit for bit |
//! | `Amp::f16()`, `Accumulate(8)`, `Clip::norm(1.0)` | 4Ψ bytes, f32 | the same gradient, without the loss scale |
//! | `Clip::norm(1.0)`, `Accumulate(8)`, `Amp::bf16()` | the same as the second row | the same gradient, bit for bit |
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
//!         // The norm of one micro-batch is noisy: `Accumulate` comes first.
//!         Effects::of("SkipSpikes").of_whole_window()
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
//! // Two micro-batches make a window: the stage holds the first, and the second completes it.
//! let mut window = |scale: f64| {
//!     let mut collect = |closes| {
//!         let x = Tensor::<2>::ones([4, 2], &device) * scale;
//!         let grads = model.forward(x).sum().backward();
//!         stages.collect(&model, Grads::new(GradientsParams::from_grads(grads, &model), closes))
//!     };
//!     assert!(matches!(collect(false), Ok(Outcome::Hold)));
//!     collect(true)
//! };
//! assert!(matches!(window(1.0)?, Outcome::Apply(_)));
//! assert!(matches!(window(1.1)?, Outcome::Apply(_)));
//! assert!(matches!(window(90.0)?, Outcome::Skip(_)));
//! # Ok::<(), StrategyError>(())
//! ```
//!
//! In a test, [`conformance::check`] runs the laws that all strategies obey on yours.

mod accumulate;
mod adaptation;
mod agreement;
mod amp;
mod buckets;
mod clip;
mod composed;
mod composition;
pub mod conformance;
pub mod cost;
mod dropout;
mod dtypes;
mod each_param;
pub mod effects;
mod ema;
mod error;
mod freeze;
mod grads;
mod keep_padding;
mod lora;
mod low_rank;
mod moving;
mod named_strategies;
mod offload;
mod once;
pub mod optim;
mod order;
mod outcome;
mod params;
mod parked;
mod pass;
mod paths;
mod quantize;
mod recompute;
pub mod registry;
mod saved_number;
mod segment;
mod setting;
mod settled;
mod setup;
mod shard;
mod skip_outliers;
mod stage;
mod stages;
mod starting_factors;
mod state;
mod strategy;
#[cfg(test)]
mod testing;
mod zero;

pub use accumulate::{Accumulate, AccumulateIn};
pub use adaptation::{Adaptation, PackedBase, params_of};
pub use agreement::{Agreed, Agreement};
pub use amp::{Amp, Keep, LossScale};
pub use clip::Clip;
pub use composed::Composed;
pub use composition::Composition;
pub use dropout::Dropout;
pub use dtypes::{Float, cast_params, float_name, require_dtype, supported_floats};
pub use each_param::{AnyParam, each_distinct_param, each_param, learns, values_on_host};
pub use effects::{Effects, Offloads, OnDisk, Reduces};
pub use ema::Ema;
pub use error::StrategyError;
pub use firebrick_kernels::Draws;
pub use firebrick_world::{Communicator, World, WorldError, host_device};
pub use freeze::Freeze;
pub use grads::{GradMap, Grads};
pub use keep_padding::KeepPadding;
pub use lora::{Lora, LoraFactors, Targets, adapted_linear, undropped_linear};
pub use low_rank::{LowRank, UnfitFactors};
pub use named_strategies::{NamedStrategy, Strategies};
pub use offload::Offload;
pub use order::Order;
pub use outcome::Outcome;
pub use params::{
    ParamMap, Trained, apart, map_params, relift, tie, tied, trained, trained_here, untie, with_values,
};
pub use parked::{Parked, ParkedParam, ParkedRead};
pub use pass::Pass;
pub use paths::{PathError, Paths, Place};
pub use quantize::Quantize;
pub use recompute::Recompute;
pub use saved_number::SavedNumber;
pub use segment::{Bundle, SegmentPlan, TensorMap, Units, Which};
pub use setting::SettingError;
pub use settled::{Settled, SkipReason};
pub use setup::Setup;
pub use shard::Shard;
pub use skip_outliers::SkipOutliers;
pub use stage::{Publishes, Stage};
pub use stages::Stages;
pub use starting_factors::{FactorValues, StartingFactors};
pub use state::{SavedStates, StageState};
pub use strategy::{Strategy, StrategyRecipe};
pub use zero::{Part, Rows, Sharding, Zero};

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
    }
}
