//! The weights of a session: the master, which the optimizer updates, and the replica, which passes read.
//!
//! Parameters of the replica may still be on their way from other ranks when an update ends, and those of blocks may wait on
//! a disk. Between two steps, master and replica have initializers in place of parameters that wait. A pass reads them block
//! by block and leaves no value in the model. Whatever else reads one leaves its value there until the next step, which
//! [renews](Weights::renew) the initializers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_kernels::sum_of_squares;
use firebrick_strategies::{
    OffloadedParams, Paths, Stages, StrategyError, each_distinct_param, each_param, learns,
};
use firebrick_world::{Communicator, numbers};

use super::updater::{arrived, buckets};
use crate::TrainError;
use crate::checkpoint::Layout;
use crate::engine::agreement::any;
use crate::scratch::{DiskParams, Values};

/// Master and replica, and where their values are.
pub(super) struct Weights<M> {
    /// Absent only during an update, because the optimizer changes the master in place only if nothing else holds its
    /// tensors.
    pair: Option<(M, M)>,
    /// Whether parameters of the replica may still be on their way.
    arrives: bool,
    /// The parameters of blocks that wait on the disk.
    on_disk: Option<OffloadedWeights>,
    /// What has been read of them since the last update.
    pub copies: Copies<M>,
}

/// The parameters that wait on the disk.
struct OffloadedWeights {
    params: Arc<DiskParams>,
    /// Those that have no value in the replica either. A strategy behind this one may have gathered others there.
    of_replica: HashSet<ParamId>,
}

/// Copies of master and average in host memory.
pub(super) struct Copies<M> {
    pub master: Option<M>,
    pub average: Option<M>,
}

impl<M> Default for Copies<M> {
    fn default() -> Self {
        Self { master: None, average: None }
    }
}

impl<M> Weights<M> {
    fn pair(&self) -> &(M, M) {
        self.pair.as_ref().expect("master and replica are back after each update")
    }

    /// The parameters that the optimizer updates.
    pub fn master(&self) -> &M {
        &self.pair().0
    }

    /// The parameters that passes read.
    pub fn replica(&self) -> &M {
        &self.pair().1
    }

    /// The parameters that wait on the disk, if there are any.
    pub fn offloaded(&self) -> Option<&Arc<DiskParams>> {
        self.on_disk.as_ref().map(|on_disk| &on_disk.params)
    }
}

impl<M: Module> Weights<M> {
    /// Creates the weights of a run from what has just been published, of which all has come.
    pub fn new(pair: (M, M), offloaded: Option<Arc<DiskParams>>) -> Self {
        let mut weights = Self { pair: None, arrives: false, on_disk: None, copies: Copies::default() };
        weights.put(pair, offloaded);
        weights.arrives = false;
        weights.renew();
        weights
    }

    /// Takes the master for an update, and drops the replica and what was copied of them. `None` if an update has failed.
    pub fn take_master(&mut self) -> Option<M> {
        self.copies = Copies::default();
        self.pair.take().map(|(master, _)| master)
    }

    /// Puts back what has been published, of which some may be on its way.
    pub fn put(&mut self, pair: (M, M), offloaded: Option<Arc<DiskParams>>) {
        self.on_disk = offloaded.map(|params| OffloadedWeights::of(params, &pair.1));
        self.pair = Some(pair);
        self.arrives = true;
    }

    /// Waits for the parameters that are on their way. Returns whether there were any.
    pub fn arrive(&mut self, device: &Device, stages: &mut Stages<M>) -> bool {
        let arrives = std::mem::take(&mut self.arrives);
        match self.pair.take() {
            Some(pair) if arrives => self.pair = Some(arrived(device, stages, pair)),
            pair => {
                self.pair = pair;
                return false;
            }
        }
        true
    }

    /// Returns whether no parameter of the replica is on its way.
    pub fn is_there(&self) -> bool {
        let mut is_there = true;
        each_param(self.replica(), |param| is_there &= param.is_initialized() || self.waits(param.id()));
        is_there
    }

    /// Returns whether a parameter waits on the disk.
    fn waits(&self, id: ParamId) -> bool {
        self.offloaded().is_some_and(|params| params.has(id))
    }

    /// Drops the values of parameters that wait, if something has read them.
    pub fn renew(&mut self) {
        let Some(OffloadedWeights { params, of_replica }) = &self.on_disk else { return };
        self.pair = self.pair.take().map(|(master, replica)| {
            let master = params.renewed(master, Values::Master, |_| true);
            (master, params.renewed(replica, Values::Replica, |id| of_replica.contains(&id)))
        });
    }

    /// Returns a model in validation mode. Parameters of the replica that wait still do.
    pub fn valid(&self, model: &M) -> M {
        match self.offloaded() {
            None => model.valid(),
            Some(params) => params.valid(model, Values::Replica),
        }
    }

    /// Returns a model of which only dtypes, shapes and settings are read.
    pub fn outline(&self, model: &M, values: Values) -> M {
        match self.offloaded() {
            None => model.clone(),
            Some(params) => params.outline(model.clone(), values, true),
        }
    }

    /// Returns the error of the disk, if a read has failed since this was last asked.
    ///
    /// # Errors
    ///
    /// The disk has failed, or has returned other bytes than were written.
    pub fn check_disk(&self) -> Result<(), TrainError> {
        self.offloaded().map_or(Ok(()), |params| Ok(params.check()?))
    }

    /// Rejects trained weights that are infinite or not a number, reading those on a disk in buckets of at most `most`
    /// bytes. They arise from a finite gradient times a learning rate that is much too large. Every rank calls it, and the
    /// result is shared by all ranks.
    ///
    /// # Errors
    ///
    /// [`TrainError::Weights`], or a lost rank.
    pub fn require_finite(
        &self,
        most: usize,
        layout: &Layout,
        world: &Communicator,
    ) -> Result<(), TrainError> {
        let mut find = NotFinite(None);
        let is_finite = self.all_finite()? && self.all_offloaded_finite(most)?;
        if !is_finite {
            self.master().visit(&mut find);
            self.check_disk()?;
        }
        if !any(world, "whether all weights are finite", find.0.is_some())? {
            return Ok(());
        }
        let place = find.0.and_then(|id| layout.place(id));
        Err(TrainError::Weights { parameter: place.map(|place| place.path.clone()) })
    }

    /// Returns true if all trained weights but those that wait are finite, with one wait for the device. It may return
    /// false where they are: if their squares overflow, or if they are on several devices.
    fn all_finite(&self) -> Result<bool, TrainError> {
        struct TakeTrained<F>(Vec<DispatchTensor>, HashSet<ParamId>, F);
        impl<F: Fn(ParamId) -> bool> ModuleVisitor for TakeTrained<F> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if !(self.2)(param.id) && learns(param) && self.1.insert(param.id) {
                    self.0.push(param.base().inner().into_dispatch());
                }
            }
        }
        let master = self.master();
        if master.devices().len() > 1 {
            return Ok(false);
        }
        let mut trained = TakeTrained(Vec::new(), HashSet::new(), |id| self.waits(id));
        master.visit(&mut trained);
        match trained.0.is_empty() {
            true => Ok(true),
            false => Ok(numbers(vec![sum_of_squares(trained.0)])?[0].is_finite()),
        }
    }

    /// Returns true if all trained parameters that wait are finite.
    fn all_offloaded_finite(&self, most: usize) -> Result<bool, TrainError> {
        let Some(params) = self.offloaded() else { return Ok(true) };
        let is_trained = |id: &ParamId| params.param(*id).is_some_and(|param| param.is_trained);
        for mut ids in buckets(params, self.master(), most) {
            ids.retain(is_trained);
            if ids.is_empty() {
                continue;
            }
            let values = params.read_masters(&ids)?.into_iter().map(|(_, value)| value.into_dispatch());
            if !numbers(vec![sum_of_squares(values.collect())])?[0].is_finite() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl OffloadedWeights {
    /// Returns the parameters that wait of a replica that has just been published.
    fn of<M: Module>(params: Arc<DiskParams>, replica: &M) -> Self {
        let mut of_replica = HashSet::new();
        each_param(replica, |param| {
            if !param.is_initialized() && params.has(param.id()) {
                of_replica.insert(param.id());
            }
        });
        Self { params, of_replica }
    }
}

/// Finds the first trainable parameter that is not finite.
struct NotFinite(Option<ParamId>);

impl ModuleVisitor for NotFinite {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.0.is_none() && learns(param) && !param.base().inner().is_finite().all().into_scalar::<bool>()
        {
            self.0 = Some(param.id);
        }
    }
}

/// The parameters of a replica that have no value when a pass begins, and get it from other ranks.
pub(super) struct AwaitedParams(HashSet<ParamId>);

impl AwaitedParams {
    pub fn of<M: Module>(replica: &M) -> Self {
        let mut awaited = HashSet::new();
        each_param(replica, |param| {
            if !param.is_initialized() {
                awaited.insert(param.id());
            }
        });
        Self(awaited)
    }

    /// Checks that the parameters that have come require a gradient in the replica where the master's do. Burn sets a lazy
    /// parameter together with its clones.
    ///
    /// # Errors
    ///
    /// The pass has set a clone of one.
    pub fn check<M: Module>(&self, master: &M, replica: &M) -> Result<(), StrategyError> {
        let mut trained = HashMap::new();
        each_distinct_param(replica, |param| {
            if self.0.contains(&param.id()) && param.is_initialized() {
                trained.insert(param.id(), param.requires_grad());
            }
        });
        let mut other = None;
        each_distinct_param(master, |param| {
            if trained.get(&param.id()).is_some_and(|trained| *trained != param.requires_grad()) {
                other = other.or(Some(param.id()));
            }
        });
        other.map_or(Ok(()), |id| {
            let parameter = Paths::of(master).path(id).unwrap_or("a parameter").into();
            Err(StrategyError::SetOnTheWay { parameter })
        })
    }
}
