//! The optimizer of a session with its schedule: it updates a master and publishes it, which makes the replica of it, whole or
//! part by part.
//!
//! An update on the host is published part by part: while a device receives the parameters of one part, the host updates
//! those of the next. A part has the parameters of a bucket, which is also how a disk keeps the optimizer's state.
//!
//! | host | update part 1 | update part 2 | update part 3 | |
//! |---|---|---|---|---|
//! | device | | receive part 1 | receive part 2 | receive part 3 |

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::optim::{Replicas, Together};
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_strategies::{
    Grads, Pass, Stages, StrategyError, each_distinct_param, tie, untie, with_values,
};

use crate::checkpoint::{OnDisk, Part, Published, split_in};
use crate::engine::late::Late;
use crate::scratch::{DiskParams, Values};
use crate::{LrSchedule, TrainError};

/// Updates a master, and says how the next update is best made.
pub(super) struct Updater {
    /// Has no state between two updates if a disk keeps it.
    pub optimizer: ModelOptimizer,
    pub disk: Option<OnDisk>,
    schedule: Arc<dyn LrSchedule>,
    /// The number of updates that the schedule spans.
    total_updates: u64,
    /// The updates made so far, with one that the device may have left out.
    pub updates: u64,
    is_tied: bool,
    /// The dtype in which an update also writes the replica, as long as publishing uses these copies.
    writes: Option<FloatDType>,
    /// The most bytes that go in one copy between host and device, if a strategy moves any.
    pub moves: Option<usize>,
    /// The parameters whose last update would have read a gradient in any dtype.
    any_dtype: HashSet<ParamId>,
    /// The parameters whose updates are left to the end of an update, where the device can decide about them.
    pub deferred: HashSet<ParamId>,
    /// The last update, if the device decides about it and nothing has read its decision.
    pub undecided: Option<UndecidedUpdate>,
}

/// An update that the device makes if the norm is finite.
pub(super) struct UndecidedUpdate {
    pub norm: Late,
    /// The parameters that have a gradient.
    pub params: HashSet<ParamId>,
    /// The factor of the loss of the next step, `[1]`, if the decision moves it.
    pub loss_scale: Option<Tensor<1>>,
}

impl Updater {
    /// Creates an updater for a model, whose parameters may be tied, of a replica in `writes` if that is not f32.
    pub fn new(
        optimizer: ModelOptimizer,
        disk: Option<OnDisk>,
        (schedule, total_updates): (Arc<dyn LrSchedule>, u64),
        is_tied: bool,
        writes: FloatDType,
        moves: Option<usize>,
    ) -> Self {
        Self {
            optimizer,
            disk,
            schedule,
            total_updates,
            updates: 0,
            is_tied,
            writes: Some(writes).filter(|dtype| *dtype != FloatDType::F32),
            moves,
            any_dtype: HashSet::new(),
            deferred: HashSet::new(),
            undecided: None,
        }
    }

    /// The learning rate of the next update.
    ///
    /// # Errors
    ///
    /// The schedule has returned none.
    pub fn rate(&self) -> Result<f64, TrainError> {
        let rate = self.schedule.rate(self.updates, self.total_updates);
        match rate.is_finite() && rate >= 0.0 {
            true => Ok(rate),
            false => Err(TrainError::LearningRate { update: self.updates, rate }),
        }
    }

    /// The parameters that the disk keeps, if it keeps any.
    pub fn offloaded(&self) -> Option<Arc<DiskParams>> {
        self.disk.as_ref()?.offloaded().cloned()
    }

    /// Returns gradients in the dtypes that the optimizer reads.
    pub fn reads<M: Module>(&self, grads: Grads, master: &M) -> GradientsParams {
        grads.for_update(master, &self.any_dtype)
    }

    /// Updates a master, and publishes it: returns master and replica, of which some may be on its way. With a `guard`, `[1]`,
    /// the device makes the update only if that is finite. `params` are those that the device may decide about. On the host,
    /// a master of which each parameter is published alone goes up `in_parts`.
    pub fn update<M: Module>(
        &mut self,
        (master, grads, rate): (M, GradientsParams, f64),
        guard: Option<Tensor<1>>,
        params: HashSet<ParamId>,
        (device, stages, in_parts): (&Device, &mut Stages<M>, bool),
    ) -> Result<(M, M), StrategyError> {
        let (is_tied, writes, is_decided) = (self.is_tied, self.writes, guard.is_none());
        let offloaded = self.offloaded();
        let waiting = offloaded.clone();
        let input = (&mut self.optimizer, self.disk.as_mut(), master, grads);
        let (pair, written) = match self.moves.filter(|_| in_parts) {
            Some(most) => published_in_parts(device, stages, input, Way { rate, is_tied, writes, most })?,
            None => published_from(device, stages, input, is_decided, move |input| {
                let mut together = Together::new().writing(writes).if_finite(guard.clone());
                let master = stepped(input, rate, is_tied, &mut together);
                (renewed(waiting.as_deref(), master, Values::Master), together)
            })?,
        };
        let all_deferred = written.waited == params.len();
        debug_assert!(is_decided || all_deferred, "the device decides about updates that it makes");
        self.shown(written, if all_deferred { Some(params) } else { None });
        // Publishing a master that waits on a disk has read it.
        let (master, replica) = pair;
        Ok((renewed(offloaded.as_deref(), master, Values::Master), replica))
    }

    /// Keeps what an update has shown: what it wrote, and the parameters whose updates were deferred if all were.
    fn shown(&mut self, written: UpdateCopies, deferred: Option<HashSet<ParamId>>) {
        match deferred {
            Some(params) => self.deferred.extend(params),
            None => self.deferred.clear(),
        }
        // No stage casts the master itself, or the optimizer does not support it: stop writing the copies.
        self.writes = self.writes.filter(|_| written.taken > 0);
        self.any_dtype = written.params;
    }
}

/// Updates a master with its gradients, all at once or bucket by bucket of a disk.
fn stepped<M: Module>(
    (optimizer, disk, master, grads): Input<'_, M>,
    rate: f64,
    is_tied: bool,
    together: &mut Together,
) -> M {
    // An update is of the first place of a tied parameter, in place only if nothing else holds the tensor.
    let master = if is_tied { untie(master) } else { master };
    let master = match disk {
        Some(disk) => disk.step(optimizer, master, grads, |optimizer, master, part| {
            (optimizer.update(rate, master, part.grads, together), Vec::new())
        }),
        None => optimizer.update(rate, master, grads, together),
    };
    if is_tied { tie(master) } else { master }
}

/// What an update wrote besides the master.
#[derive(Default)]
struct UpdateCopies {
    /// The number of the replica's parameters that are copies written by the update.
    taken: usize,
    /// The parameters that have such a copy.
    params: HashSet<ParamId>,
    /// The number of parameters whose updates have waited for their launch.
    waited: usize,
}

/// Publishes a new master: informs the stages of it, and returns master and replica, once all of the replica is there.
pub(super) fn published<M: Module>(
    pass: &Pass,
    stages: &mut Stages<M>,
    master: M,
) -> Result<(M, M), StrategyError> {
    let (pair, _) = published_from(pass.device(), stages, master, true, |master| (master, Together::new()))?;
    let pair = arrived(pass.device(), stages, pair);
    pass.check()?;
    Ok(pair)
}

/// Waits for the parameters of a replica that are on their way from other ranks, and lets the master read their memory where
/// both hold the same values. [`Pass::check`] tells whether all of them have come.
pub(super) fn arrived<M: Module>(device: &Device, stages: &mut Stages<M>, pair: (M, M)) -> (M, M) {
    device.memory_persistent_allocations((pair, stages), |((master, replica), stages)| {
        (stages.alias_master(master, &replica), replica)
    })
}

/// Launches the updates of a master that is computed from `input`, and publishes it with the copies that they wrote. The
/// stages are informed only if it `is_decided`. Parameters of the replica may still be [on their way](arrived).
///
/// Tensors that outlive a step are allocated in the device's persistent pool, apart from the activations of each step. An
/// update's temporaries are allocated there too: they have the sizes of parameters, and the next update reuses them.
fn published_from<M: Module, I: Send>(
    device: &Device,
    stages: &mut Stages<M>,
    input: I,
    is_decided: bool,
    master: impl Fn(I) -> (M, Together) + Send + Sync,
) -> Result<((M, M), UpdateCopies), StrategyError> {
    device.memory_persistent_allocations((input, stages), |(input, stages)| {
        let (master, together) = master(input);
        let waited = together.waiting();
        let copies = together.launch();
        if is_decided {
            stages.updated(&master);
        }
        let mut publish = || stages.publish(master.clone());
        let (replica, written) = match copies {
            None => (publish(), UpdateCopies { waited, ..UpdateCopies::default() }),
            Some(copies) => {
                let params = copies.params(&master);
                let (replica, taken) = copies.lend(publish);
                (replica, UpdateCopies { taken, params, waited })
            }
        };
        Ok(((master, replica?), written))
    })
}

/// Publishes a master whose parameters wait, in buckets of at most `most` bytes if the stages can. Returns master and replica.
///
/// # Errors
///
/// The disk is full or fails, or another rank is lost.
pub(super) fn published_to_disk<M: Module>(
    stages: &mut Stages<M>,
    params: &Arc<DiskParams>,
    master: M,
    most: Option<usize>,
) -> Result<(M, M), TrainError> {
    let replica = match stages.publishes_each() {
        // A clone of the master would share the values that are read of it.
        false => stages.publish(params.renewed(master.clone(), Values::Master, |_| true))?,
        true => {
            for ids in buckets(params, &master, most.unwrap_or(usize::MAX)) {
                let masters = params.read_masters(&ids)?;
                let published = stages.publish_each(masters.clone())?;
                params.put_replicas(masters, published)?;
            }
            let mut others = Vec::new();
            each_distinct_param(&master, |param| {
                if !params.has(param.id()) {
                    others.push((param.id(), param.flat()));
                }
            });
            let others = stages.publish_each(others)?.into_iter().collect();
            let replica = params.renewed(master.clone(), Values::Replica, |_| true);
            stages.publish_rest(with_values(replica, others))?
        }
    };
    let master = stages.alias_master(master, &replica);
    params.check()?;
    Ok((master, replica))
}

/// What an update changes, and the gradients.
type Input<'a, M> = (&'a mut ModelOptimizer, Option<&'a mut OnDisk>, M, GradientsParams);

/// How an update is made.
#[derive(Clone, Copy)]
struct Way {
    rate: f64,
    is_tied: bool,
    /// The dtype in which it also writes the replica.
    writes: Option<FloatDType>,
    /// The most bytes of parameters in a part, if no disk says it, unless one alone has more.
    most: usize,
}

/// Updates a master on the host, and publishes it part by part. Returns master and replica, and the copies that the update
/// wrote.
fn published_in_parts<M: Module>(
    device: &Device,
    stages: &mut Stages<M>,
    input: Input<'_, M>,
    way: Way,
) -> Result<((M, M), UpdateCopies), StrategyError> {
    device.memory_persistent_allocations((input, stages), |(input, stages)| {
        let (optimizer, disk, master, grads) = input;
        // An update is of the first place of a tied parameter, in place only if nothing else holds the tensor.
        let master = if way.is_tied { untie(master) } else { master };
        let offloaded = disk.as_ref().and_then(|disk| disk.offloaded().cloned());
        let (values, written) = (HashMap::new(), UpdateCopies::default());
        let mut publishing = Publishing { stages, offloaded, values, written, failed: None };
        let mut update = |optimizer: &mut ModelOptimizer, model: M, Part { params, grads }: Part| {
            let mut together = Together::new().writing(way.writes);
            let model = optimizer.update(way.rate, model, grads, &mut together);
            let published = publishing.publish(&model, &params.into_iter().collect(), together.launch());
            (model, published)
        };
        let master = match disk {
            Some(disk) => disk.step(optimizer, master, grads, update),
            None => {
                let parts = split_in(&master, grads, way.most);
                parts.into_iter().fold(master, |master, part| update(optimizer, master, part).0)
            }
        };
        let master = if way.is_tied { tie(master) } else { master };
        publishing.end(master)
    })
}

/// A master that is being published.
struct Publishing<'a, M> {
    stages: &'a mut Stages<M>,
    /// The parameters that wait on the disk.
    offloaded: Option<Arc<DiskParams>>,
    /// The other published parameters, each flat.
    values: HashMap<ParamId, Tensor<1>>,
    written: UpdateCopies,
    failed: Option<StrategyError>,
}

impl<M: Module> Publishing<'_, M> {
    /// Publishes some parameters, of which the update wrote these copies. Returns those that wait on the disk.
    fn publish(&mut self, model: &M, params: &HashSet<ParamId>, copies: Option<Replicas>) -> Published {
        let mut flat = Vec::with_capacity(params.len());
        each_distinct_param(model, |param| {
            if params.contains(&param.id()) {
                flat.push((param.id(), param.flat()));
            }
        });
        let published = match copies {
            None => self.stages.publish_each(flat),
            Some(copies) => {
                let copied = flat.iter().filter(|(_, value)| copies.of(value).is_some()).map(|(id, _)| *id);
                self.written.params.extend(copied);
                let (published, taken) = copies.lend(|| self.stages.publish_each(flat));
                self.written.taken += taken;
                published
            }
        };
        let published = published.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            Vec::new()
        });
        let waits = |id| self.offloaded.as_ref().is_some_and(|offloaded| offloaded.has(id));
        let (waiting, others): (Vec<_>, Vec<_>) = published.into_iter().partition(|(id, _)| waits(*id));
        self.values.extend(others);
        waiting
    }

    /// Publishes the parameters that the update left as they were, and returns master and replica.
    fn end(mut self, master: M) -> Result<((M, M), UpdateCopies), StrategyError> {
        let master = renewed(self.offloaded.as_deref(), master, Values::Master);
        self.stages.updated(&master);
        let mut rest = HashSet::new();
        each_distinct_param(&master, |param| {
            let waits = self.offloaded.as_ref().is_some_and(|offloaded| offloaded.has(param.id()));
            if !waits && !self.values.contains_key(&param.id()) {
                rest.insert(param.id());
            }
        });
        self.publish(&master, &rest, None);
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let published = renewed(self.offloaded.as_deref(), master.clone(), Values::Replica);
        let replica = self.stages.publish_rest(with_values(published, self.values))?;
        Ok(((master, replica), self.written))
    }
}

/// Returns the model with initializers for its parameters that wait.
fn renewed<M: Module>(offloaded: Option<&DiskParams>, model: M, values: Values) -> M {
    match offloaded {
        None => model,
        Some(offloaded) => offloaded.renewed(model, values, |_| true),
    }
}

/// Splits the parameters that wait into runs of neighbours in the model, of at most `most` bytes of the master each, unless
/// one alone has more.
pub(super) fn buckets<M: Module>(params: &DiskParams, master: &M, most: usize) -> Vec<Vec<ParamId>> {
    let (mut runs, mut sum) = (Vec::<Vec<ParamId>>::new(), 0);
    each_distinct_param(master, |param| {
        let Some(stored) = params.stored(param.id(), Values::Master) else { return };
        let bytes = stored.tensors[0].bytes;
        match runs.last_mut().filter(|_| sum + bytes <= most) {
            Some(run) => {
                run.push(param.id());
                sum += bytes;
            }
            None => {
                runs.push(vec![param.id()]);
                sum = bytes;
            }
        }
    });
    runs
}
