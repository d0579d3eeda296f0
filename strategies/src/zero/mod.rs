//! ZeRO: data parallel training whose ranks share the state instead of each holding all of it.
//!
//! Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020
//! (arXiv:1910.02054); stage 3 is what PyTorch calls fully sharded data parallel.
//!
//! ```text
//! mod.rs       Zero: the recipe
//! sharded.rs   the live state: shards of the master, gathered or not, and sums of gradients
//! sharding.rs  which parameters are divided, and how the whole comes of their shards
//! reduced.rs   sums of gradients over the ranks
//! rows.rs      the rows of a parameter that each rank holds
//! ```

mod reduced;
mod rows;
mod sharded;
mod sharding;

use burn::module::Module;
use burn::tensor::FloatDType;

use crate::segment::Units;
use crate::world::World;
use crate::{Setup, Strategy, StrategyError};

pub(crate) use reduced::{Part, add};
pub use sharded::Sharded;
pub(crate) use sharding::Sharding;

const NAME: &str = "Zero";

/// Parameters of fewer elements are held whole by every rank, unless [`Zero::replicate_below`] says otherwise.
const REPLICATE_BELOW: usize = 1024;

/// Trains on many ranks, each with its part of every global batch, and shards what they hold.
///
/// A *rank* is one of the [`World`] that trains together: a thread with a device, or a process. All of
/// them make the same update from the sum of their gradients, so the result is that of one rank with
/// the same global batch, beyond the rounding of sums. What each holds depends on the stage:
///
/// | stage | each rank holds | bytes per parameter, f32 | with `Amp::bf16()` |
/// |---|---|---|---|
/// | 0 | everything: plain data parallel | 16 | 14 + g |
/// | 1 | its shard of master and moments | 8 + 8/N | 2 + g + 12/N |
/// | 2 | and of the gradients | 4 + 12/N | 2 + (12 + g)/N |
/// | 3 | and of the replica | 16/N | (14 + g)/N |
///
/// for N ranks and AdamW; g is 2, or 4 once gradients are accumulated in f32. What an update sends, in
/// elements per parameter and times (N-1)/N, over k micro-batches:
///
/// | stage | position | sent |
/// |---|---|---|
/// | 0 | after `Accumulate(k)` | 2: the sum of the gradients |
/// | 1 | after `Accumulate(k)` | 2: gradients to their shards, and the new parameters |
/// | 2 | first | k + 1: the gradients of each micro-batch, and the new parameters |
/// | 3 | first | 3k for blocks, which are gathered forward and backward, and 2k for the rest |
///
/// A parameter is sharded along its first axis, the same number of rows to each rank, padded with rows
/// of zeros. Those of fewer than 1024 elements (see [`replicate_below`](Self::replicate_below)), or of
/// fewer rows than there are ranks, are held whole; in stages 1 and 2 frozen ones too, which have no state.
///
/// # Order
///
/// Stages 0 and 1 act where they are written: before `Accumulate` they reduce each micro-batch, after it
/// once per window; before `Amp` in the replica's dtype, after it in f32. `Clip` comes after, so that it sees
/// whole gradients. Stages 2 and 3 reduce each block's gradients as soon as the backward pass leaves its
/// [segment](crate::Pass::segment), so they stand first; [`summing_in`](Self::summing_in) sets the dtype that
/// gradients travel in.
///
/// # Blocks
///
/// Stage 3 gathers a block's parameters when its segment starts and drops them when it ends, and again for
/// the backward pass, in which the block is run once more. While one block computes, the next one is being
/// gathered. The blocks are the elements of the model's lists (its `Vec` fields), or what
/// [`blocks`](Self::blocks) names; what is in none of them, and what is tied to a parameter elsewhere, is
/// gathered for the whole pass. A block's parameter that is read outside its segment is an error.
///
/// # At the start
///
/// Rank 0 deals the model that it was given, one parameter after the other: through the host's memory it sends
/// each rank its shard, and what all hold whole. So no device holds more of the master than it keeps. A model
/// that none could hold is made on the host, and the devices are named by [`World::on`]; ranks of one process
/// share it, so that it is in memory once. A run file makes it there by itself.
///
/// # Optimizers
///
/// A shard is updated by itself, so the optimizer must treat each element by itself: AdamW, Adam, Lion,
/// SGD, Adan, AdaGrad and RMSProp do. Muon, Adafactor and LAMB do not and are refused in stages 1 to 3.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Setup, Stage, Strategy, World, Zero};
///
/// let ranks = World::threads(2).join()?.into_iter().map(|rank| {
///     std::thread::spawn(move || {
///         let device = Device::flex().autodiff();
///         let model = LinearConfig::new(64, 32).init(&device);
///         let mut setup = Setup::new(&model, &device).among(rank);
///         let mut zero = Zero::stage(1).start(&mut setup)?;
///         let master = zero.init_master(model)?;
///         assert_eq!(master.weight.val().dims(), [32, 32]); // half of its rows
///         assert_eq!(master.bias.as_ref().unwrap().val().dims(), [32]); // small: whole
///         let replica = zero.publish(master)?;
///         assert_eq!(replica.weight.val().dims(), [64, 32]);
///         Ok::<(), firebrick_strategies::StrategyError>(())
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     rank.join().unwrap()?;
/// }
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Zero {
    stage: u8,
    world: Option<World>,
    sum_in: Option<FloatDType>,
    replicate_below: usize,
    blocks: Vec<String>,
}

impl Zero {
    /// Shards optimizer state (1), gradients too (2), the replica too (3), or nothing (0).
    pub fn stage(stage: u8) -> Self {
        Self { stage, world: None, sum_in: None, replicate_below: REPLICATE_BELOW, blocks: Vec::new() }
    }

    /// Who the ranks are. Default: those of the trainer, or this one alone.
    pub fn over(self, world: World) -> Self {
        Self { world: Some(world), ..self }
    }

    /// Gradients travel in this dtype, instead of the one that they have there. They are added up in f32 in
    /// any case, and a sum is never kept in less than the gradients had. In f16 a gradient above 65504 is infinite
    /// on its way, and its window is skipped.
    ///
    /// Where [NCCL](World::on) makes the sums, gradients are rounded to this dtype just so, and the numbers are the
    /// same; but they take f32's four bytes on their way, since NCCL would round a half-precision sum at every rank.
    pub fn summing_in(self, dtype: FloatDType) -> Self {
        Self { sum_in: Some(dtype), ..self }
    }

    /// Parameters of fewer elements are held whole by every rank: gathering them would cost more time
    /// than their memory is worth. Default: 1024.
    pub fn replicate_below(self, elements: usize) -> Self {
        Self { replicate_below: elements, ..self }
    }

    /// The blocks are the modules of these [paths](crate::Paths), instead of the elements of the model's lists.
    pub fn blocks<P: Into<String>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        Self { blocks: paths.into_iter().map(Into::into).collect(), ..self }
    }

    fn check(&self) -> Result<(), StrategyError> {
        if self.stage > 3 {
            return Err(StrategyError::Setting {
                strategy: NAME,
                setting: "the stage",
                expected: "0, 1, 2 or 3",
                found: self.stage.to_string(),
            });
        }
        if self.stage < 2 && !self.blocks.is_empty() {
            return Err(StrategyError::Setting {
                strategy: NAME,
                setting: "blocks",
                expected: "left out in stages 0 and 1, which do not go block by block",
                found: self.blocks.join(", "),
            });
        }
        Ok(())
    }

    /// The blocks of the model, by their paths.
    fn block_paths<M>(&self, setup: &Setup<M>) -> Result<Vec<String>, StrategyError> {
        let paths = setup.segments().paths();
        if self.blocks.is_empty() {
            return Ok(paths.blocks().map(str::to_string).collect());
        }
        let mut blocks = Vec::new();
        for pattern in &self.blocks {
            let found = paths.modules_matching(pattern);
            let found = found.map_err(|error| StrategyError::Path { strategy: NAME, error })?;
            blocks.extend(found.into_iter().map(str::to_string));
        }
        Ok(blocks)
    }
}

impl<M: Module> Strategy<M> for Zero {
    type Stage = Sharded;

    fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    fn start(&self, setup: &mut Setup<M>) -> Result<Sharded, StrategyError> {
        self.check()?;
        if let Some(dtype) = self.sum_in {
            crate::dtypes::require_dtype(NAME, setup.device(), dtype)?;
        }
        setup.reduce_gradients(NAME, self.stage)?;
        let world = setup.world().clone();
        let sharding = match self.stage {
            0 => Sharding::none(world, self.sum_in),
            stage => Sharding::of(setup.model(), world, self.replicate_below, stage < 3, self.sum_in),
        };
        let sharding = std::sync::Arc::new(sharding);
        let paths = if self.stage >= 2 { self.block_paths(setup)? } else { Vec::new() };
        let units = Units::of(setup.segments().paths(), &paths);
        if self.stage >= 2 {
            let gathers = self.stage == 3;
            setup.segments_mut().shard(units, sharding.clone(), gathers);
        }
        setup.place_master();
        Ok(Sharded::new(self.stage, sharding, setup))
    }
}
