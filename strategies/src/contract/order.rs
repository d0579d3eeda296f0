//! The order of a composition: what each strategy finds done before it.

use burn::tensor::{DType, FloatDType};

use crate::{Effects, Offloads, OnDisk, Pipelined, Reduces, StrategyError};

/// The [effects](Effects) of a composition, in the order in which gradients pass through its strategies.
///
/// You write strategies in any order: execution has one right order, and what is learned comes after it, on the gradients of
/// the whole update, in the order in which you write it.
///
/// 1. what [adapts](Effects::adapts) the model, as it is written: `Lora`, `Freeze`; then `Quantize`, which packs what they
///    have frozen
/// 2. [`Zero`](crate::Zero) that sums each micro-batch: stages 2 and 3, or
///    [`each_micro_batch`](crate::Zero::each_micro_batch)
/// 3. [`Offload`](crate::Offload)
/// 4. [`Amp`](crate::Amp)
/// 5. [`Accumulate`](crate::Accumulate)
/// 6. `Zero` that sums once per update: stages 0 and 1
/// 7. `Offload(optimizer)` that moves gradients once per update: behind such a `Zero`, or with
///    [`each_update`](crate::Offload::each_update)
/// 8. [`Mesh`](crate::Mesh), whose stages of a pipeline sum the gradients of what each of them has
/// 9. all others, as they are written
///
/// If there is a 6 or a 7, `Amp` comes behind it, so that parameters travel in the replica's dtype.
///
/// ```
/// use firebrick_strategies::{Accumulate, Clip, Order, StrategyRecipe};
///
/// let order = Order::of([Clip::norm(1.0).effects(), Accumulate(4).effects()])?;
/// let names: Vec<_> = order.effects().iter().map(|effects| effects.strategy).collect();
/// assert_eq!(names, ["Accumulate", "Clip"]);
/// let error = Order::of([Accumulate(4).effects(), Accumulate(2).effects()]).unwrap_err();
/// assert_eq!(error.to_string(), "Accumulate is named twice: keep one of them");
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order(Vec<Effects>);

/// When a strategy meets the gradients of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The model is adapted.
    Adapt,
    /// What is frozen by then is packed.
    Quantize,
    /// The ranks sum each micro-batch.
    ReduceEach,
    /// Each micro-batch is moved to the host.
    OffloadEach,
    /// Each micro-batch is cast.
    CastEach,
    /// Micro-batches are added up.
    Accumulate,
    /// The ranks sum what was added up.
    ReduceOnce,
    /// What was added up is moved to the host.
    OffloadOnce,
    /// What was added up is cast.
    CastOnce,
    /// Ranks sum the gradients of what each stage of a pipeline has.
    SumStages,
    /// The gradients of the update are complete.
    Complete,
}

impl Phase {
    /// Returns the phase of one of these strategies.
    fn of(one: &Effects, all: &[Effects]) -> Self {
        let reduces_once = |one: &Effects| one.reduces.is_some_and(|reduces| !reduces.each_micro_batch);
        let offloads_once = |one: &Effects| match one.offloads {
            Some(Offloads::Optimizer) => one.moves_each_update || all.iter().any(reduces_once),
            Some(Offloads::Parameters) | None => false,
        };
        if reduces_once(one) {
            Self::ReduceOnce
        } else if one.reduces.is_some() {
            Self::ReduceEach
        } else if offloads_once(one) {
            Self::OffloadOnce
        } else if one.offloads.is_some() {
            Self::OffloadEach
        } else if one.sums.is_some() {
            Self::Accumulate
        } else if one.casts.is_some() {
            let is_once = all.iter().any(|one| reduces_once(one) || offloads_once(one));
            if is_once { Self::CastOnce } else { Self::CastEach }
        } else if one.quantizes.is_some() {
            Self::Quantize
        } else if one.adapts {
            Self::Adapt
        } else if one.pipeline.is_some() {
            Self::SumStages
        } else {
            Self::Complete
        }
    }
}

impl Order {
    /// Composes strategies with these effects.
    ///
    /// # Errors
    ///
    /// A technique stands twice.
    pub fn of(all: impl IntoIterator<Item = Effects>) -> Result<Self, StrategyError> {
        Ok(Self(Self::sorted(all.into_iter().collect(), Effects::clone)?))
    }

    /// Sorts strategies into this order.
    ///
    /// # Errors
    ///
    /// A technique stands twice.
    pub fn sorted<T>(strategies: Vec<T>, effects: impl Fn(&T) -> Effects) -> Result<Vec<T>, StrategyError> {
        let all: Vec<Effects> = strategies.iter().map(effects).collect();
        for (at, one) in all.iter().enumerate() {
            if all[..at].iter().any(|other| one.repeats(other)) {
                return Err(StrategyError::Twice(one.strategy));
            }
        }
        let phases = all.iter().map(|one| Phase::of(one, &all));
        let mut sorted: Vec<_> = phases.zip(strategies).collect();
        sorted.sort_by_key(|(phase, _)| *phase);
        Ok(sorted.into_iter().map(|(_, strategy)| strategy).collect())
    }

    /// Adds a strategy.
    ///
    /// # Errors
    ///
    /// The technique is there already.
    pub fn add(&mut self, effects: Effects) -> Result<(), StrategyError> {
        *self = Self::of(self.0.iter().cloned().chain([effects]))?;
        Ok(())
    }

    /// Returns the effects of the strategies, in their order.
    pub fn effects(&self) -> &[Effects] {
        &self.0
    }

    /// Returns the first effect of a kind, with the place of its strategy.
    fn find<T>(&self, of: impl Fn(&Effects) -> Option<T>) -> Option<(usize, T)> {
        self.0.iter().enumerate().find_map(|(place, effects)| Some((place, of(effects)?)))
    }

    fn place<T>(&self, of: impl Fn(&Effects) -> Option<T>) -> Option<usize> {
        self.find(of).map(|(place, _)| place)
    }

    /// Returns the number of micro-batches per optimizer step: 1 unless a strategy sums them.
    pub fn micro_batches(&self) -> usize {
        self.find(|effects| effects.sums).map_or(1, |(_, sums)| sums.micro_batches)
    }

    /// Returns whether a strategy sums the micro-batches of an optimizer step. Without such a strategy, an update uses
    /// the gradients of exactly one micro-batch.
    pub fn sums_micro_batches(&self) -> bool {
        self.find(|effects| effects.sums).is_some()
    }

    /// Returns the bytes of an element of the sum that is held over an optimizer step.
    pub fn held_bytes(&self) -> usize {
        self.find(|effects| effects.sums).map_or(4, |(_, sums)| DType::from(sums.dtype).size())
    }

    /// Returns the dtype of the replica, if a strategy casts it.
    pub fn replica(&self) -> Option<FloatDType> {
        self.find(|effects| effects.casts).map(|(_, casts)| casts.replica)
    }

    /// Returns the dtype that training computes in: the replica's, or f32 by default.
    pub fn training_dtype(&self) -> FloatDType {
        self.replica().unwrap_or(FloatDType::F32)
    }

    /// Returns whether linear layers of blocks multiply in 8 bits in training.
    pub fn multiplies_in_fp8(&self) -> bool {
        self.0.iter().filter_map(|effects| effects.casts).any(|casts| casts.in_fp8)
    }

    /// Returns the dtype that evaluation computes in.
    pub fn evaluation_dtype(&self) -> FloatDType {
        self.find(|effects| effects.casts).map_or(FloatDType::F32, |(_, casts)| casts.evaluation)
    }

    /// Returns how gradients are summed over the ranks, if a strategy sums them.
    pub fn reduces(&self) -> Option<Reduces> {
        self.find(|effects| effects.reduces).map(|(_, reduces)| reduces)
    }

    /// Returns among how many ranks the tokens of a sample are divided: 1 unless a strategy divides them.
    pub fn context(&self) -> usize {
        self.find(|effects| effects.context).map_or(1, |(_, ranks)| ranks.max(1))
    }

    /// Returns among how many ranks layers are divided: 1 unless a strategy divides them.
    pub fn tensor(&self) -> usize {
        self.find(|effects| effects.tensor).map_or(1, |(_, ranks)| ranks.max(1))
    }

    /// Returns the pipeline that blocks are divided into, if a strategy divides them among several ranks.
    pub fn pipeline(&self) -> Option<Pipelined> {
        self.find(|effects| effects.pipeline.clone())
            .map(|(_, pipeline)| pipeline)
            .filter(|pipeline| pipeline.ranks > 1)
    }

    /// Returns how many ranks in a row hold one copy of the model.
    pub fn ranks_per_model(&self) -> usize {
        self.tensor().saturating_mul(self.pipeline().map_or(1, |pipeline| pipeline.ranks))
    }

    /// Returns how many ranks in a row train on the same samples.
    pub fn ranks_per_batch(&self) -> usize {
        self.context().saturating_mul(self.ranks_per_model())
    }

    /// Returns how many of the ranks share a copy of the state.
    pub fn sharing(&self, ranks: u64) -> u64 {
        self.reduces().map_or(ranks, |reduces| reduces.sharing(ranks as usize) as u64)
    }

    /// Returns the stage of ZeRO: 0 if no strategy shards anything.
    pub fn stage(&self) -> u8 {
        self.reduces().map_or(0, |reduces| reduces.stage)
    }

    /// Returns what host memory keeps, if anything.
    pub fn offloads(&self) -> Option<Offloads> {
        self.find(|effects| effects.offloads).map(|(_, offloads)| offloads)
    }

    /// Returns the most bytes that are moved between host and device in one copy, if anything is.
    pub fn moves(&self) -> Option<usize> {
        self.find(|effects| effects.moves).map(|(_, bytes)| bytes)
    }

    /// Returns the disk that keeps the optimizer's state, if any.
    pub fn on_disk(&self) -> Option<&OnDisk> {
        self.0.iter().find_map(|effects| effects.on_disk.as_ref())
    }

    /// Returns whether a disk keeps the parameters of blocks too.
    pub fn offloads_parameters_to_disk(&self) -> bool {
        self.on_disk().is_some() && self.offloads() == Some(Offloads::Parameters)
    }

    /// Returns whether a strategy moves each parameter to the master's device in
    /// [`init_master`](crate::Stage::init_master), one parameter at a time. Before that the model may be on any
    /// device, and need not fit on the training device.
    pub fn places_master(&self) -> bool {
        self.reduces().is_some() || self.offloads().is_some()
    }

    /// Returns whether each rank updates only its shard of each parameter.
    pub fn shards_master(&self) -> bool {
        self.stage() > 0
    }

    /// Returns whether an average of the weights is kept.
    pub fn averages(&self) -> bool {
        self.0.iter().any(|effects| effects.averages)
    }

    /// Returns whether the master, the replica and the held gradients of a step are on the host, in this order.
    pub fn on_host(&self) -> [bool; 3] {
        let Some((offload, offloads)) = self.find(|effects| effects.offloads) else { return [false; 3] };
        let holds = self.place(|effects| effects.sums).is_some_and(|sum| offload < sum);
        [true, offloads == Offloads::Parameters, holds]
    }

    /// Returns whether a strategy keeps frozen matrices packed.
    pub fn quantizes(&self) -> bool {
        self.0.iter().any(|effects| effects.quantizes.is_some())
    }

    /// Returns whether blocks whose parameters are fetched, gathered or unpacked run again in the backward pass, as all do
    /// then.
    pub fn runs_blocks_again(&self) -> bool {
        self.stage() == 3 || self.offloads() == Some(Offloads::Parameters) || self.quantizes()
    }

    /// Returns whether the gradients of each micro-batch are summed over the ranks, rather than those of the update.
    pub fn sums_each_micro_batch(&self) -> bool {
        let reduces = self.place(|effects| effects.reduces).unwrap_or(usize::MAX);
        self.place(|effects| effects.sums).is_none_or(|sums| reduces < sums)
    }

    /// Returns whether parameters are gathered on the host and then copied to the device.
    pub fn gathers_on_host(&self) -> bool {
        let reduces = self.place(|effects| effects.reduces).unwrap_or(usize::MAX);
        self.place(|effects| effects.offloads).is_some_and(|offload| offload < reduces)
    }

    /// Returns whether blocks hand their gradients to the host as soon as the backward pass leaves them: only a sum
    /// over the ranks comes before the strategy that offloads.
    pub fn lands_on_host(&self) -> bool {
        self.place(|effects| effects.offloads).is_some_and(|offload| {
            self.0[..offload].iter().all(|first| !first.meets_gradients() || first.reduces.is_some())
        })
    }

    /// Returns whether blocks hand over their gradients as soon as the backward pass leaves them, to the ranks or to
    /// the host. Gradients that stages 0 and 1 sum at the end of the pass stay until then.
    pub fn delivers(&self) -> bool {
        self.stage() >= 2 || self.lands_on_host() && (self.gathers_on_host() || self.reduces().is_none())
    }
}
