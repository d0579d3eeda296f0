//! ZeRO: data-parallel training whose ranks share the state instead of each holding all of it.
//!
//! Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020
//! (arXiv:1910.02054). PyTorch calls stage 3 fully sharded data parallel (FSDP).
//!
//! ```text
//! mod.rs       Zero: the recipe
//! sharded.rs   the live state: shards of the master, gathered parameters, and gradient sums
//! arriving.rs  gathered parameters that the next forward pass waits for
//! views.rs     shards of the master as views of the gathered parameters
//! ```
//!
//! [`Sharding`] divides the parameters, gathers them, and sums gradients. It stands outside this folder, because a pass and the
//! gradients have one too.

mod arriving;
mod sharded;
mod views;

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::FloatDType;
use firebrick_world::World;
use serde::{Deserialize, Deserializer, Serialize};

use crate::moving::BUCKET_BYTES;
use crate::{
    Effects, Reduces, SettingError, Setup, Sharding, Stages, Strategy, StrategyError, StrategyRecipe, Units,
    dtypes,
};
use sharded::Sharded;

const NAME: &str = "Zero";

/// Default of [`Zero::replicate_below`]: every rank holds smaller parameters whole.
const REPLICATE_BELOW: usize = 1024;

/// Trains data-parallel on many ranks and shards their state.
///
/// A *rank* is a member of the [`World`] that trains together: a thread with a device, or a process. Each rank
/// processes its part of every global batch, and all make the same update from the sum of their gradients. The result
/// equals training on one rank with the same global batch, up to the rounding of sums. What each rank holds depends on
/// the stage:
///
/// | stage | each rank holds | bytes per parameter, f32 | with `Amp::bf16()` |
/// |---|---|---|---|
/// | 0 | everything: plain data parallel | 16 | 14 + g |
/// | 1 | its shard of master and moments | 8 + 8/N | 2 + g + 12/N |
/// | 2 | and its shard of the gradients | 4 + 12/N | 2 + (12 + g)/N |
/// | 3 | and its shard of the replica | 16/N | (14 + g)/N |
///
/// for N ranks and AdamW; g is 2, or 4 if gradients accumulate in f32. An update over k micro-batches sends, in
/// elements per parameter and times (N-1)/N:
///
/// | stage | sent |
/// |---|---|
/// | 0 | 2: the sum of the gradients |
/// | 1 | 2: gradients to their shards, and the new parameters |
/// | 2 | k + 1: the gradients of each micro-batch, and the new parameters |
/// | 3 | 3k for blocks, which are gathered forward and backward, 2k for the last block, and k + 1 for other parameters |
///
/// A parameter is sharded along its first axis: each rank holds the same number of rows, padded with rows
/// of zeros. Every rank holds a parameter whole if it has fewer than 1024 elements (see
/// [`replicate_below`](Self::replicate_below)) or fewer rows than there are ranks; in stages 1 and 2 also if it is
/// frozen, because it has no state.
///
/// # When gradients are summed
///
/// Stages 0 and 1 sum the gradients of an update once, in f32; [`each_micro_batch`](Self::each_micro_batch) sums those of each
/// micro-batch, as they leave the backward pass. Stages 2 and 3 always do, and sum those of a block as soon as the pass leaves
/// its [segment](crate::Pass::segment). [`summing_in`](Self::summing_in) sets the dtype in which gradients travel.
/// Parameters travel in the dtype of the replica.
///
/// Stages 1 and 2 gather the new parameters of blocks while the next forward pass computes: a [segment](crate::Pass::segment)
/// waits for its block. Parameters outside segments are gathered first, and are there before the pass begins. So a model
/// that opens no segment waits for all of them.
///
/// # Blocks
///
/// Stage 3 gathers a block's parameters when its segment starts and drops them when it ends. It gathers them again for
/// the backward pass, which runs the block once more. While one block computes, the next one is being gathered, and in
/// stages 2 and 3 the gradients of the one before are summed. The last block of the forward pass stays for the backward
/// pass, which begins with it. With [`Offload::parameters`](crate::Offload::parameters), a rank's shards of the block after the
/// next one are meanwhile read from the disk, or copied to the device if devices exchange them.
///
/// The blocks are the elements of the model's lists (its `Vec` fields), or the modules that [`blocks`](Self::blocks)
/// names. Parameters outside the blocks, and those tied to a parameter elsewhere, are gathered by the first pass of a
/// step and stay until its last pass has ended. Reading a block's parameter outside its segment is an error.
///
/// # At the start
///
/// Rank 0 distributes its model, one parameter after the other: through host memory it sends each rank its shard, and
/// the parameters that all ranks hold whole. No device holds more of the master than it keeps. If the model fits no
/// device, make it on the host and assign the devices with [`World::on`]; ranks of one process share it, so it is in
/// memory once. A run from a run file does this by itself.
///
/// # Optimizers
///
/// A shard is updated on its own, so the optimizer must treat elements independently: AdamW, Adam, Lion,
/// SGD, Adan, AdaGrad and RMSProp do. Muon, Adafactor and LAMB do not, and stages 1 to 3 reject them.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Composition, Setup, World, Zero};
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zero {
    stage: u8,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    each_micro_batch: bool,
    #[serde(skip)]
    world: Option<World>,
    #[serde(default, with = "dtypes::option", skip_serializing_if = "Option::is_none")]
    sum_in: Option<FloatDType>,
    #[serde(
        default = "replicate_below",
        deserialize_with = "given_or_default",
        skip_serializing_if = "is_default"
    )]
    replicate_below: usize,
    #[serde(default, deserialize_with = "given_or_none", skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<String>,
    #[serde(default = "bucket_bytes", skip_serializing_if = "is_default_bucket")]
    bucket_bytes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<usize>,
}

fn bucket_bytes() -> usize {
    BUCKET_BYTES
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default_bucket(bytes: &usize) -> bool {
    *bytes == BUCKET_BYTES
}

fn replicate_below() -> usize {
    REPLICATE_BELOW
}

/// Older run files have `None` for a setting at its default.
fn given_or_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(REPLICATE_BELOW))
}

fn given_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default(elements: &usize) -> bool {
    *elements == REPLICATE_BELOW
}

impl Zero {
    /// Creates the recipe: stage 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the replica.
    pub fn stage(stage: u8) -> Self {
        Self {
            stage,
            each_micro_batch: false,
            world: None,
            sum_in: None,
            replicate_below: REPLICATE_BELOW,
            blocks: Vec::new(),
            bucket_bytes: BUCKET_BYTES,
            within: None,
        }
    }

    /// Sets the ranks. Default: those of the trainer, or a single rank.
    pub fn over(self, world: World) -> Self {
        Self { world: Some(world), ..self }
    }

    /// Sums the gradients of each micro-batch in stages 0 and 1 too. Default: once per update.
    ///
    /// With `Accumulate(k)`, gradients are then sent k times. In return, stage 1 adds up this rank's shard of them alone, 4/N
    /// bytes per parameter in place of 4, and with `Amp::bf16()` they travel in two bytes, not four.
    pub fn each_micro_batch(self) -> Self {
        Self { each_micro_batch: true, ..self }
    }

    /// Sets the dtype in which gradients travel. Default: f32 if they are summed once per update, and otherwise the dtype in
    /// which they leave the backward pass. Sums are taken in f32 in any case, and never stored in a narrower dtype than
    /// the gradients'. In f16 a gradient above 65504 becomes infinite in transit, and its update is skipped.
    ///
    /// If [NCCL](World::on) makes the sums, gradients are rounded to this dtype all the same, and the numbers do not
    /// change; but they travel as four-byte f32, since NCCL would round a half-precision sum at every rank.
    pub fn summing_in(self, dtype: FloatDType) -> Self {
        Self { sum_in: Some(dtype), ..self }
    }

    /// Keeps parameters of fewer elements whole on every rank, since gathering them would cost more time
    /// than their memory is worth. Default: 1024.
    pub fn replicate_below(self, elements: usize) -> Self {
        Self { replicate_below: elements, ..self }
    }

    /// Sets the blocks to the modules of these [paths](crate::Paths). Default: the elements of the model's lists.
    pub fn blocks<P: Into<String>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        Self { blocks: paths.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the most bytes of whole parameters or gradients that travel together, unless one alone has more. Larger buckets use
    /// a network better, and take more memory beside the model. Default: 32 MiB.
    ///
    /// A block's gradients are summed when the backward pass leaves it, and in stage 3 its parameters are gathered while the
    /// one before it computes, in as many buckets as they fill. In stages 1 and 2 a bucket may have parameters of
    /// several blocks; a model of a single bucket waits for all of it. A bucket that passes through host memory is one copy from the device
    /// and one to it.
    ///
    /// If a model has branches of blocks side by side, such as two towers, stage 2 sums their gradients in an order that depends
    /// on the number of operations in each branch. It must be the same on all ranks, whatever their batches have; otherwise
    /// the run ends with [`WorldError::Mismatch`](firebrick_world::WorldError::Mismatch), and stages 1 and 3 still serve it.
    ///
    /// Stages 1 and 2 begin the gathers of all buckets after an update. If they pass through host memory, what other ranks have sent
    /// waits there until the next forward pass reads it: at most the bytes of the replica.
    pub fn bucket_bytes(self, bytes: usize) -> Self {
        Self { bucket_bytes: bytes, ..self }
    }

    /// Shards the state among `ranks` neighbouring ranks, and gives each such group a copy of it: hybrid sharding, PyTorch's
    /// `HYBRID_SHARD` and MiCS. Default: all ranks share one copy. `ranks` must divide the number of ranks;
    /// with that many ranks or fewer, all share one copy.
    ///
    /// Make the group one machine: parameters are gathered, and gradients summed to their shards, over the links within it.
    /// Only the sum of each shard's gradients over the copies, a `1/ranks` of the gradients, crosses to other machines, and the
    /// gradients of parameters that every rank holds whole.
    /// With `mpirun` and `World::mpi`, ranks are neighbours in the order in which the launcher fills the machines.
    ///
    /// The sum over the copies is a second sum: it travels in the dtype of the first, and is rounded once more. One
    /// copy of the shards, that of the first group, is written to checkpoints, and a run resumes with any number of
    /// ranks and copies.
    ///
    /// Zhang et al., *MiCS: Near-linear Scaling for Training Gigantic Model on Public Cloud*, 2022 (arXiv:2205.00119).
    ///
    /// ```
    /// use firebrick_strategies::Zero;
    ///
    /// // Machines with eight GPUs each.
    /// let zero = Zero::stage(3).within(8);
    /// ```
    pub fn within(self, ranks: usize) -> Self {
        Self { within: Some(ranks), ..self }
    }

    /// Returns the same recipe in another stage, which sums gradients when it does by default; stages 0 and 1 have no blocks,
    /// and stage 0 no shards.
    pub fn at_stage(mut self, stage: u8) -> Self {
        if stage < 2 {
            self.blocks.clear();
        }
        self.within = self.within.filter(|_| stage > 0);
        Self { stage, each_micro_batch: self.each_micro_batch && stage == self.stage, ..self }
    }

    /// Returns the same recipe without [groups](Self::within): all ranks share one copy of the state.
    pub fn in_one_copy(self) -> Self {
        Self { within: None, ..self }
    }

    fn reduces(&self) -> Reduces {
        let &Self { stage, replicate_below, sum_in, within, .. } = self;
        let each_micro_batch = self.each_micro_batch || stage >= 2;
        Reduces { stage, each_micro_batch, replicate_below, sum_in, within }
    }

    /// Rejects groups of ranks that do not divide the ranks.
    fn check_groups(&self, ranks: usize) -> Result<(), SettingError> {
        let within = self.within.unwrap_or(ranks);
        let divides = within >= ranks || ranks.is_multiple_of(within);
        SettingError::require(divides, "within", format!("a divisor of the {ranks} ranks"), within)
    }

    /// Returns the paths of the model's blocks.
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

impl StrategyRecipe for Zero {
    fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    fn effects(&self) -> Effects {
        Effects { reduces: Some(self.reduces()), paths: self.blocks.clone(), ..Effects::none(NAME) }
    }

    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(self.stage <= 3, "stage", "0, 1, 2 or 3", self.stage)?;
        SettingError::require(self.bucket_bytes > 0, "bucket_bytes", "at least 1", self.bucket_bytes)?;
        if let Some(within) = self.within {
            SettingError::require(within > 0, "within", "at least 1", within)?;
            SettingError::require(
                self.stage > 0,
                "within",
                "left out in stage 0, which shards nothing",
                within,
            )?;
        }
        SettingError::require(
            self.stage < 2 || !self.each_micro_batch,
            "each_micro_batch",
            "left out in stages 2 and 3, which always do",
            true,
        )?;
        let expected = "left out in stages 0 and 1, which do not go block by block";
        SettingError::require(
            self.stage >= 2 || self.blocks.is_empty(),
            "blocks",
            expected,
            self.blocks.join(", "),
        )
    }
}

impl<M: Module> Strategy<M> for Zero {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        if let Some(dtype) = self.sum_in {
            dtypes::require_dtype(NAME, setup.device(), dtype)?;
        }
        let fits = self.check_groups(setup.world().size());
        fits.map_err(|error| StrategyError::Setting { strategy: NAME, error })?;
        let sharding = Sharding::of(setup.model(), setup.world().clone(), &self.reduces());
        let sharding = Arc::new(sharding.in_buckets_of(self.bucket_bytes));
        let paths = if self.stage >= 2 { self.block_paths(setup)? } else { Vec::new() };
        let units = Units::of(setup.segments().paths(), &paths);
        if self.stage >= 2 {
            let gathers = self.stage == 3;
            setup.segments_mut().shard(units, sharding.clone(), gathers);
        }
        Ok(Stages::of(Sharded::new(&self.reduces(), sharding, setup)))
    }
}
