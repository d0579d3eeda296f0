//! Updates of a session: made, skipped, or left to the device's decision.
//!
//! A step makes no update if the norm of its gradients is not finite. On the CPU and among several ranks the norm is
//! read first. On a GPU the update is launched at once, with the norm as its guard: if it is not finite, the kernels
//! change nothing. The host counts the update as made, and reads the norm when the device has long copied it, once the
//! first pass of the next step is submitted. If there was no update, it then takes back what it had counted, so that
//! the run goes on as if it had waited. A loss scale that depends on the decision is chosen by the device too.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::tensor::Tensor;
use firebrick_strategies::{Agreement, Grads, Outcome, Settled, SkipReason};
use firebrick_world::is_host;

use super::Session;
use super::memory::MemoryProbe;
use super::updater::{UndecidedUpdate, Updater, arrived};
use crate::TrainError;
use crate::accounting::{FirstUpdate, Placement};
use crate::checkpoint::{OnDisk, StateSize};
use crate::engine::late::Late;
use crate::engine::step::{Step, settled_by};
use crate::memory::Storages;
use crate::observe::rank_report::Exchanged;
use crate::scratch::Values;

/// The factor of a loss before the backward pass.
pub(super) enum LossScale {
    Known(f64),
    /// `[1]`, outside autodiff.
    OnDevice(Box<Tensor<1>>),
}

impl<M: Module> Session<M> {
    /// Applies or skips the gradients of the step, or leaves the decision to the device. Several ranks tell each other
    /// about the step, unless a stage has made them.
    pub(super) fn settle(
        &mut self,
        outcome: Outcome,
        agreement: Option<Agreement>,
        step: &mut Step,
    ) -> Result<(), TrainError> {
        step.update = self.updater.updates;
        let loss = step.end_loss();
        let fit = match outcome {
            Outcome::Apply(mut grads) => {
                let master = self.weights.master();
                grads.agree(master)?;
                let tensor = grads.norm(master)?;
                let norm = grads.known_norm().map_or_else(|| Late::new(tensor.clone()), Late::known);
                step.norm = Some(norm.clone());
                let numbers: Vec<_> = [norm.clone()].into_iter().chain(loss).collect();
                if let Some(params) = self.left_to_device(&grads)
                    && Late::begin(&numbers)
                {
                    let loss_scale = self.loss_scale_by(&tensor);
                    self.update(grads, Some(tensor), step)?;
                    step.settled = None;
                    self.updater.undecided = Some(UndecidedUpdate { norm, params, loss_scale });
                    return Ok(());
                }
                // The norm decides about the update, and is also the reported number. The loss is read with it: a step
                // waits for the device once.
                let settled = settled_by(Late::read_all(&numbers)?[0]);
                match (grads.skip(), settled) {
                    (Some(reason), _) => Err(reason.clone()),
                    (None, _) if grads.is_empty() => return Err(TrainError::NoGradients),
                    (None, Settled::Skipped(reason)) => Err(reason),
                    (None, Settled::Applied) => Ok(grads),
                }
            }
            Outcome::Skip(reason) => Err(reason),
            // The last micro-batch of a step cannot be held: `Stages::collect` returns an error.
            Outcome::Hold => Err(SkipReason::NoItems),
        };
        let mut agreed = None;
        if let Some(agreement) = agreement {
            let of_all = agreement.make(fit.as_ref().err())?;
            agreed = of_all.skip.clone();
            self.ranks.told(of_all, step)?;
        }
        match (agreed, fit) {
            (None, Ok(grads)) => {
                self.update(grads, None, step)?;
                Ok(self.stages.after_step(&Settled::Applied)?)
            }
            (Some(reason), _) | (None, Err(reason)) => self.skip(reason, step),
        }
    }

    /// Ends a step without an update.
    pub(super) fn skip(&mut self, reason: SkipReason, step: &mut Step) -> Result<(), TrainError> {
        self.confirm()?;
        step.update = self.updater.updates;
        step.loss_scale = self.stages.loss_scale();
        let settled = Settled::Skipped(reason);
        step.settled = Some(settled.clone());
        Ok(self.stages.after_step(&settled)?)
    }

    /// Waits until the last update is over: all of the replica is there, and it is known whether the device has made the update.
    /// If it has not, takes back what was counted of it. Everything that depends on the number of updates, or that looks
    /// at the state, calls this first.
    ///
    /// # Errors
    ///
    /// The device has failed, another rank is gone, or a strategy ends the run.
    pub fn confirm(&mut self) -> Result<(), TrainError> {
        self.arrive()?;
        let Some(UndecidedUpdate { norm, params, .. }) = self.updater.undecided.take() else { return Ok(()) };
        let settled = settled_by(norm.read()?);
        match &settled {
            Settled::Applied if self.stages.keeps_average() => {
                let updated = (&mut self.stages, self.weights.master().clone());
                self.pass
                    .device()
                    .memory_persistent_allocations(updated, |(stages, master)| stages.updated(&master));
            }
            Settled::Applied => {}
            Settled::Skipped(_) => {
                self.updater.optimizer.retract(&params);
                self.updater.updates -= 1;
            }
        }
        Ok(self.stages.after_step(&settled)?)
    }

    /// Confirms the last update between two steps, and waits for the parameters that are on their way. What is exchanged for
    /// them counts in the next step.
    ///
    /// # Errors
    ///
    /// The same as [`confirm`](Self::confirm), or another rank is gone.
    pub fn confirm_between(&mut self) -> Result<(), TrainError> {
        let before = self.ranks.begin();
        let confirmed = self.confirm().and_then(|()| self.arrive());
        self.ranks.end_between(&before);
        confirmed
    }

    /// Takes what was exchanged for the last step after it had ended.
    pub(crate) fn exchanged_since(&mut self) -> Exchanged {
        self.ranks.rest()
    }

    /// Waits for the parameters of the replica that are on their way, if the last update has left any, and counts the bytes
    /// of all.
    pub(super) fn arrive(&mut self) -> Result<(), TrainError> {
        if self.weights.arrive(self.pass.device(), &mut self.stages) {
            self.pass.check()?;
            let averaged = self.stages.averaged();
            self.memory.bytes.count(self.weights.master(), self.weights.replica(), averaged.as_ref());
        }
        Ok(())
    }

    /// Returns the factor of the loss of the next micro-batch, if there is one.
    pub(super) fn loss_scale(&mut self) -> Option<LossScale> {
        let chosen = self.updater.undecided.as_ref().and_then(|undecided| undecided.loss_scale.clone());
        chosen
            .map(Box::new)
            .map(LossScale::OnDevice)
            .or_else(|| self.stages.loss_scale().map(LossScale::Known))
    }

    /// Lets the device choose the loss scale of the next step by the norm of this one, `[1]`, if its decision moves it.
    fn loss_scale_by(&mut self, norm: &Tensor<1>) -> Option<Tensor<1>> {
        let after = |settled| self.stages.loss_scale_after(&settled);
        let applied = after(Settled::Applied)?;
        let skipped = after(Settled::Skipped(SkipReason::NonFinite))?;
        let skips = norm.clone().is_nan().bool_or(norm.clone().is_inf());
        (applied != skipped).then(|| Tensor::full_like(norm, applied).mask_fill(skips, skipped))
    }

    /// Returns the parameters to update, if the device may decide about their update on its own.
    fn left_to_device(&mut self, grads: &Grads) -> Option<HashSet<ParamId>> {
        let alone = self.ranks.world.size() == 1 && !self.updater.deferred.is_empty();
        if !alone || grads.skip().is_some() || grads.known_norm().is_some() {
            return None;
        }
        let params = grads.ids(self.weights.master());
        (!params.is_empty() && params.is_subset(&self.updater.deferred)).then_some(params)
    }

    /// Updates the master and publishes it; with a guard, only if that is finite.
    fn update(&mut self, grads: Grads, guard: Option<Tensor<1>>, step: &mut Step) -> Result<(), TrainError> {
        step.rate = self.updater.rate()?;
        let device = self.pass.device().clone();
        let Some(master) = self.weights.take_master() else { return Ok(()) };
        let master = self.stages.unalias_master(master);
        let offloaded = self.updater.offloaded();
        let master = match &offloaded {
            None => master,
            // An optimizer updates whatever has a value.
            Some(offloaded) => offloaded.outline(master, Values::Master, true),
        };
        // Only a device's updates are deferred.
        let params = if is_host(&device) { HashSet::new() } else { grads.ids(&master) };
        let grads = self.updater.reads(grads, &master);
        let gradient_bytes = Storages::of_gradients(&master, &grads);
        let first = FirstUpdate::begins(self.updater.updates == 0, &master, &grads, &device);
        let Placement { master_on_host, replica_on_host, .. } = self.memory.bytes.placement;
        let is_copied = master_on_host && !replica_on_host;
        let in_parts = (is_copied || offloaded.is_some()) && self.stages.publishes_each();
        let (updated, to) = ((master, grads, step.rate), (&device, &mut self.stages, in_parts));
        let pair = self.updater.update(updated, guard, params, to)?;
        // What is on its way would be missing in the measurement.
        let pair = if first.measures() { arrived(&device, &mut self.stages, pair) } else { pair };
        self.count_state(first, &pair);
        self.weights.put(pair, offloaded);
        self.updater.disk.as_mut().map_or(Ok(()), OnDisk::check)?;
        if self.weights.is_there() {
            self.arrive()?;
        }
        self.updater.updates += 1;
        step.update = self.updater.updates;
        self.memory.after_update(gradient_bytes)
    }

    /// Counts the bytes of the optimizer's state after an update.
    fn count_state(&mut self, first: FirstUpdate, (master, replica): &(M, M)) {
        let Updater { optimizer, disk, updates, .. } = &self.updater;
        let MemoryProbe { bytes, budget, .. } = &mut self.memory;
        match (disk, first.ends(master, replica, self.pass.device())) {
            (Some(disk), _) => bytes.count_disk(disk.bytes(), disk.file()),
            (None, Some(measured)) => bytes.optimizer = measured,
            // If nothing measures it, a run with a budget reads the optimizer's state once.
            (None, None) if *updates == 0 && budget.is_some() => {
                bytes.optimizer = StateSize::of(optimizer, master).bytes;
            }
            (None, None) => {}
        }
    }
}
