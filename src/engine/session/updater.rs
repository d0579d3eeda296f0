//! The optimizer of a session with its schedule, and what its updates so far have shown.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::optim::Together;
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_strategies::{Grads, Stages, StrategyError, tie, untie};

use super::publish::{Input, Way, Written, published_from, published_in_parts, renewed};
use crate::checkpoint::OnDisk;
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
    pub undecided: Option<Undecided>,
}

/// An update that the device makes if the norm is finite.
pub(super) struct Undecided {
    pub norm: Late,
    /// The parameters that have a gradient.
    pub params: HashSet<ParamId>,
    /// The factor of the next window's loss, `[1]`, if the decision moves it.
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
    fn shown(&mut self, written: Written, deferred: Option<HashSet<ParamId>>) {
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
