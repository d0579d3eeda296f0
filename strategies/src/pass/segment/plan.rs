//! The decisions of strategies about the segments of a model.

use std::collections::{BTreeSet, HashSet};
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use burn::module::{Module, ParamId};
use burn::tensor::Device;
use firebrick_kernels::fits_fp8;
use firebrick_world::Communicator;

use super::budget::Budget;
use super::maps::shape_of;
use super::offloaded::OffloadedParams;
use super::units::{Handling, Units};
use super::{Bundle, lock};
use crate::error::Faults;
use crate::{ModelParts, OwnTokens, Paths, Pipeline, Sharding, StrategyError, each_param};

/// The decisions of strategies about the segments of a model, and what training has learned about the segments.
///
/// Strategies fill it in when they start; the pass reads it at each segment.
#[derive(Debug, Default)]
pub struct SegmentPlan {
    pub(super) recompute: Option<Which>,
    pub(super) host: Option<Device>,
    elementwise: bool,
    keeps_padding: bool,
    /// The ranks that share the tokens of each batch with this one.
    context: Option<Communicator>,
    /// The parts of the model that ranks hold.
    parts: Option<Arc<ModelParts>>,
    unpacks: bool,
    handling: Handling,
    /// The units in the order in which the last pass reached them.
    order: Mutex<Vec<usize>>,
    /// The parameters of blocks that passes have run in segments.
    in_segments: Mutex<HashSet<ParamId>>,
    paths: Paths,
    pub(super) verified: Mutex<HashSet<u64>>,
    /// If blocks multiply in 8 bits, what they have done so far.
    fp8: Option<Arc<InFp8>>,
    faults: Faults,
}

/// What the linear layers of blocks did, if they are to multiply in 8 bits.
#[derive(Debug, Default)]
struct InFp8 {
    computed: AtomicBool,
    /// The paths of weights whose shapes do not fit, until they have been reported.
    unfit: Mutex<BTreeSet<String>>,
    told: Mutex<BTreeSet<String>>,
}

/// The segments to recompute.
#[derive(Debug)]
pub enum Which {
    /// The first of every `n` segments.
    Every(usize),
    /// The segments of blocks at these paths.
    Paths(HashSet<String>),
    /// As few as possible, so that the others fit.
    Within(Mutex<Budget>),
}

/// A segment that a pass reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReachedSegment {
    /// Its id, the same in each pass over the same model.
    pub id: u64,
    /// Its index among the segments of its level, from 0.
    pub index: usize,
    /// Whether it is in no other segment.
    pub outermost: bool,
}

impl Which {
    /// As few as possible, so that the others hold at most `bytes` together.
    pub fn within(bytes: usize) -> Self {
        Self::Within(Mutex::new(Budget::new(bytes)))
    }
}

impl SegmentPlan {
    /// Creates a plan that leaves every segment unchanged.
    pub fn of<M: Module>(model: &M) -> Self {
        Self { paths: Paths::of(model), ..Self::default() }
    }

    /// Copies the decisions, without the knowledge about segments.
    pub(crate) fn afresh(&self) -> Self {
        let recompute = self.recompute.as_ref().map(|which| match which {
            Which::Every(count) => Which::Every(*count),
            Which::Paths(paths) => Which::Paths(paths.clone()),
            Which::Within(budget) => Which::within(lock(budget).bytes()),
        });
        let Self { elementwise, keeps_padding, unpacks, .. } = *self;
        let (host, paths, handling) = (self.host.clone(), self.paths.clone(), self.handling.clone());
        let (context, parts, fp8) = (self.context.clone(), self.parts.clone(), self.fp8.clone());
        Self {
            recompute,
            host,
            elementwise,
            keeps_padding,
            context,
            parts,
            unpacks,
            paths,
            handling,
            fp8,
            ..Self::default()
        }
    }

    /// Returns the paths of the model's parameters and modules.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Returns whether to use Burn's own element-wise scheme.
    pub fn is_elementwise(&self) -> bool {
        self.elementwise
    }

    /// Recomputes these segments, and keeps their inputs on `host` if it is given.
    pub fn recompute(&mut self, which: Which, host: Option<Device>) {
        self.recompute = Some(which);
        self.host = host;
    }

    /// Recomputes the operations between matrix products, with Burn's own scheme.
    pub fn recompute_elementwise(&mut self) {
        self.elementwise = true;
    }

    /// Recomputes all outermost segments, because their blocks unpack parameters to read them: the graph would keep the
    /// unpacked ones.
    pub fn recompute_unpacked(&mut self) {
        self.unpacks = true;
    }

    /// Returns whether blocks unpack parameters to read them.
    pub(super) fn unpacks(&self) -> bool {
        self.unpacks
    }

    /// Computes padding instead of dropping it.
    pub fn keep_padding(&mut self) {
        self.keeps_padding = true;
    }

    /// Returns whether models compute padding.
    pub fn keeps_padding(&self) -> bool {
        self.keeps_padding
    }

    /// Divides the tokens of each batch among these ranks, which read the same batches.
    pub fn divide_context(&mut self, ranks: Communicator) {
        self.context = Some(ranks);
    }

    /// Returns the ranks that share the tokens of each batch, if there are several.
    pub(crate) fn context(&self) -> Option<&Communicator> {
        self.context.as_ref()
    }

    /// Computes layers, or blocks, together with the ranks that hold the other parts of the model.
    pub fn divide_model(&mut self, parts: Arc<ModelParts>) {
        self.parts = Some(parts);
    }

    /// Returns the parts of the model that ranks hold, if they divide it.
    pub(crate) fn parts(&self) -> Option<&ModelParts> {
        self.parts.as_deref()
    }

    /// Returns the ranks that compute layers together with this one, if there are any.
    pub(crate) fn tensor(&self) -> Option<&Communicator> {
        self.parts.as_ref()?.tensor()
    }

    /// Returns the tokens of which this rank has the embeddings and the logits, if ranks divide the vocabulary.
    pub(crate) fn own_tokens(&self) -> Option<&OwnTokens> {
        self.parts.as_ref()?.own_tokens()
    }

    /// Returns the stages of the pipeline that blocks are divided into, if they are.
    pub(crate) fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        self.parts.as_ref()?.pipeline()
    }

    /// Multiplies in 8 bits in the linear layers of blocks.
    pub fn multiply_in_fp8(&mut self) {
        self.fp8 = Some(Arc::default());
    }

    /// Returns whether a linear layer of a block multiplies by this weight, `[in, out]`, in 8 bits. A weight that does not
    /// fit is [reported](Self::not_in_fp8) later.
    pub(crate) fn is_in_fp8(&self, weight: ParamId, shape: [usize; 2]) -> bool {
        let Some(fp8) = &self.fp8 else { return false };
        let fits = fits_fp8(shape);
        match fits {
            true => fp8.computed.store(true, Relaxed),
            false => {
                lock(&fp8.unfit).insert(self.paths.path(weight).unwrap_or("a weight").to_string());
            }
        }
        fits
    }

    /// Returns the weights of blocks that stay in bf16 although blocks multiply in 8 bits, each once; or an error if none
    /// has been multiplied in 8 bits. Call it after a pass.
    ///
    /// # Errors
    ///
    /// No linear layer of a block has multiplied in 8 bits.
    pub fn not_in_fp8(&self) -> Result<Vec<String>, StrategyError> {
        let Some(fp8) = &self.fp8 else { return Ok(Vec::new()) };
        let found = take(&mut *lock(&fp8.unfit));
        if !fp8.computed.load(Relaxed) {
            return Err(StrategyError::NothingInFp8 { unfit: found.into_iter().collect() });
        }
        Ok(found.into_iter().filter(|path| lock(&fp8.told).insert(path.clone())).collect())
    }

    /// Returns how the parameters of blocks are handled.
    pub(crate) fn handling(&self) -> &Handling {
        &self.handling
    }

    /// Sums the gradients of blocks over the ranks in the backward pass, and with `gathers` gathers the blocks'
    /// parameters for their segments.
    pub fn shard(&mut self, units: Units, sharding: Arc<Sharding>, gathers: bool) {
        self.handling.units = units;
        self.handling.sharding = Some(sharding);
        self.handling.gathers = gathers;
    }

    /// With `lands`, moves the gradients of blocks to the host in the backward pass; with `fetches`, keeps their
    /// parameters there. At most `moves` bytes of gradients go in one copy, unless a tensor alone has more.
    pub fn offload(&mut self, fetches: bool, lands: bool, moves: usize) {
        if self.handling.units.count() == 0 && (fetches || lands) {
            let blocks: Vec<_> = self.paths.blocks().map(str::to_string).collect();
            self.handling.units = Units::of(&self.paths, &blocks);
        }
        self.handling.fetches = fetches;
        self.handling.lands = lands;
        self.handling.moves = Some(moves);
    }

    /// Copies the decisions, for parameters of blocks that wait in `offloaded` if they have no value. Faults are reported as before.
    pub(crate) fn reading(&self, offloaded: Arc<dyn OffloadedParams>) -> Self {
        let handling = Handling { offloaded: Some(offloaded), ..self.handling.clone() };
        Self { handling, faults: self.faults.clone(), ..self.afresh() }
    }

    /// Returns whether segments provide this parameter: it is stored elsewhere than where the pass computes.
    pub fn provides(&self, id: ParamId) -> bool {
        self.handling.units.has(id) && self.handling.is_away(id)
    }

    /// Initializes the parameters of a block whose segment runs: lazy ones would be taken for parameters that are held elsewhere.
    pub(super) fn wake_segment<B: Module>(&self, block: &B) {
        each_param(block, |param| {
            lock(&self.in_segments).insert(param.id());
            param.value();
        });
    }

    /// Initializes the parameters of a model that no segment is known to read. A model reads these as it likes, and Burn's lazy
    /// parameters share more with their clones than others: a clone's `no_grad()` would reach the parameter.
    pub(crate) fn wake_outside<M: Module>(&self, model: &M) {
        each_param(model, |param| {
            if !param.is_initialized() && !lock(&self.in_segments).contains(&param.id()) {
                param.value();
            }
        });
    }

    /// Predicts the two units after this one, which was reached at `place` of the pass: those that followed in the last
    /// pass.
    pub(crate) fn come_after(&self, place: usize, unit: usize) -> [Option<usize>; 2] {
        let mut order = lock(&self.order);
        let follow = match order.get(place) == Some(&unit) {
            true => [1, 2].map(|by| order.get(place + by).copied()),
            false => [None; 2],
        };
        if follow[0].is_none() {
            order.truncate(place);
            order.push(unit);
        }
        follow
    }

    /// Forgets what came after so many units in an earlier pass: a training pass has ended there, and one that generates may
    /// have run more.
    pub(crate) fn ends_at(&self, place: usize) {
        lock(&self.order).truncate(place);
    }

    /// Returns an error if a segment makes it pointless to continue, once.
    ///
    /// A model's forward pass returns no error, so call this before you use its gradients.
    ///
    /// # Errors
    ///
    /// A segment read a tracked tensor that is not part of its input, or gave another result when it was recomputed; no
    /// choice of segments fits the budget; a parameter of a block was read outside its segment; another rank is gone.
    pub fn check(&self) -> Result<(), StrategyError> {
        self.faults.check()
    }

    /// Returns where to report faults of this plan's passes.
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    pub(crate) fn report(&self, fault: StrategyError) {
        self.faults.report(fault);
    }

    /// Returns the name of a segment: the path of its block, or its number among the segments of its level.
    pub(in crate::pass) fn name_of<B: Module>(&self, block: &B, index: usize) -> String {
        self.paths.module_of(block).map_or_else(|| format!("number {index}"), str::to_string)
    }

    /// Returns whether a segment is to be recomputed.
    pub(super) fn recomputes<B: Module, X: Bundle>(&self, block: &B, input: &X, met: ReachedSegment) -> bool {
        let path = || self.paths.module_of(block);
        self.recompute.as_ref().is_some_and(|which| self.chooses(which, path, input, met))
    }

    fn chooses<'a, X: Bundle>(
        &self,
        which: &Which,
        path: impl Fn() -> Option<&'a str>,
        input: &X,
        met: ReachedSegment,
    ) -> bool {
        match which {
            Which::Every(count) => met.index.is_multiple_of(*count),
            Which::Paths(paths) => path().is_some_and(|path| paths.contains(path)),
            Which::Within(_) if !met.outermost => false,
            Which::Within(budget) => {
                let mut budget = lock(budget);
                budget.recomputes(met.id, &shape_of(input)).unwrap_or_else(|needs| {
                    self.report(StrategyError::Budget { budget: budget.bytes(), needed: needs.0 });
                    true
                })
            }
        }
    }
}
