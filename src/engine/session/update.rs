//! Updates of a session: made, skipped, or left to the device's decision.
//!
//! A window makes no update if the norm of its gradients is not finite. On the CPU and among several ranks the norm is read
//! first. On a GPU the update is launched at once, with the norm as its guard: if it is not finite, the kernels change
//! nothing. The host counts the update as made, and reads the norm when the device has long copied it, once the next
//! window's first pass is submitted. If there was no update, it then takes back what it had counted, so that the run goes
//! on as if it had waited. A loss scale that depends on the decision is chosen by the device too.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::tensor::Tensor;
use firebrick_datasets::Batch;
use firebrick_kernels::optim::{deferrals, replicas, together, together_if_finite};
use firebrick_strategies::optim::retract;
use firebrick_strategies::{Agreement, Grads, Outcome, Settled, SkipReason, each_param, tie, untie};
use firebrick_world::is_host;

use super::in_parts::{Input, Way, published_in_parts, renewed};
use super::parked::Parking;
use super::published::{arrived, published_from};
use super::whole::Copies;
use super::{Session, Weights};
use crate::TrainError;
use crate::accounting::FirstUpdate;
use crate::accounting::budget::{Moment, OnDevice};
use crate::checkpoint::{OnDisk, StateSize};
use crate::engine::agreement::{PartOfStep, PartOfWindow, StepOfAll, Tells};
use crate::engine::feed::Feed;
use crate::engine::late::Late;
use crate::engine::step::{Step, settled_by};
use crate::memory::Storages;
use crate::observe::rank_report::Exchanged;
use crate::scratch::Values;

/// An update that the device makes if the norm is finite.
pub(super) struct Undecided {
    norm: Late,
    /// The parameters that have a gradient.
    params: HashSet<ParamId>,
    /// The factor of the next window's loss, `[1]`, if the decision moves it.
    loss_scale: Option<Tensor<1>>,
}

/// The factor of a loss before the backward pass.
pub(super) enum LossScale {
    Known(f64),
    /// `[1]`, outside autodiff.
    OnDevice(Box<Tensor<1>>),
}

impl<M: Module> Session<M> {
    /// Prepares what this rank tells the others in this step, if there are others: its part of the loss, the next window,
    /// what the training loop tells, and whom the rank has waited for since `before`.
    pub(super) fn telling<B: Batch>(
        &self,
        step: &mut Step,
        feed: &mut Feed<B>,
        Tells { stops, saving, may_end }: Tells,
        before: Exchanged,
    ) -> Option<Agreement> {
        if self.world.size() == 1 {
            return None;
        }
        let next = if may_end { None } else { feed.peek() };
        let next = next.map(PartOfWindow::of).unwrap_or_default();
        let (part, world) = (PartOfStep { updates: self.updates, stops, saving, next }, self.world.clone());
        let numbers = move || part.numbers(Exchanged::of(&world).since(&before).slowest());
        Some(Agreement::new(&self.world, step.take_loss(), numbers))
    }

    /// Applies or skips the window's gradients, or leaves the decision to the device. Several ranks tell each other about
    /// the step, unless a stage has made them.
    pub(super) fn settle(
        &mut self,
        outcome: Outcome,
        agreement: Option<Agreement>,
        step: &mut Step,
    ) -> Result<(), TrainError> {
        step.update = self.updates;
        let loss = step.end_loss();
        let fit = match outcome {
            Outcome::Apply(mut grads) => {
                let master = self.weights.pair().0;
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
                    self.undecided = Some(Undecided { norm, params, loss_scale });
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
            // The closing micro-batch cannot be held: `Stages::collect` returns an error.
            Outcome::Hold => Err(SkipReason::NoItems),
        };
        let mut agreed = None;
        if let Some(agreement) = agreement {
            let of_all = agreement.make(fit.as_ref().err())?;
            agreed = of_all.skip.clone();
            let of_all = StepOfAll::of(of_all, self.world.rank())?;
            self.next = of_all.next.clone();
            step.of_all = Some(of_all);
        }
        match (agreed, fit) {
            (None, Ok(grads)) => {
                self.update(grads, None, step)?;
                Ok(self.stages.after_window(&Settled::Applied)?)
            }
            (Some(reason), _) | (None, Err(reason)) => self.skip(reason, step),
        }
    }

    /// Makes no update from a window.
    pub(super) fn skip(&mut self, reason: SkipReason, step: &mut Step) -> Result<(), TrainError> {
        self.confirm()?;
        step.update = self.updates;
        step.loss_scale = self.stages.loss_scale();
        let settled = Settled::Skipped(reason);
        step.settled = Some(settled.clone());
        Ok(self.stages.after_window(&settled)?)
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
        let Some(Undecided { norm, params, .. }) = self.undecided.take() else { return Ok(()) };
        let settled = settled_by(norm.read()?);
        match &settled {
            Settled::Applied if self.stages.keeps_average() => {
                let (stages, master) = (&mut self.stages, self.weights.pair().0);
                let updated = (stages, master.clone());
                self.pass
                    .device()
                    .memory_persistent_allocations(updated, |(stages, master)| stages.updated(&master));
            }
            Settled::Applied => {}
            Settled::Skipped(_) => {
                retract(&mut self.optimizer, self.weights.pair().0, &params);
                self.updates -= 1;
            }
        }
        Ok(self.stages.after_window(&settled)?)
    }

    /// Confirms the last update between two steps, and waits for the parameters that are on their way. What is exchanged for
    /// them counts in the next step.
    ///
    /// # Errors
    ///
    /// The same as [`confirm`](Self::confirm), or another rank is gone.
    pub fn confirm_between(&mut self) -> Result<(), TrainError> {
        let before = self.counted.begin(&self.world);
        let confirmed = self.confirm().and_then(|()| self.arrive());
        self.counted.end_between(&self.world, &before);
        confirmed
    }

    /// Takes what was exchanged for the last step after it had ended.
    pub(crate) fn exchanged_since(&mut self) -> Exchanged {
        self.counted.rest()
    }

    /// Waits for the parameters of the replica that are on their way, if the last update has left any, and counts the bytes
    /// of all.
    pub(super) fn arrive(&mut self) -> Result<(), TrainError> {
        if std::mem::take(&mut self.arrives)
            && let Some(pair) = self.weights.pair.take()
        {
            self.weights = Weights::new(arrived(self.pass.device(), &mut self.stages, pair));
            self.pass.check()?;
            let (master, replica) = self.weights.pair();
            self.bytes.count(master, replica, self.stages.averaged().as_ref());
        }
        Ok(())
    }

    /// Returns whether no parameter of the replica is on its way.
    fn is_there(&self) -> bool {
        let waits = |id| self.parking.as_ref().is_some_and(|parking| parking.params.has(id));
        let mut is_there = true;
        each_param(self.replica(), |param| is_there &= param.is_initialized() || waits(param.id()));
        is_there
    }

    /// Returns the factor of the loss of the next micro-batch, if there is one.
    pub(super) fn loss_scale(&mut self) -> Option<LossScale> {
        let chosen = self.undecided.as_ref().and_then(|undecided| undecided.loss_scale.clone());
        chosen
            .map(Box::new)
            .map(LossScale::OnDevice)
            .or_else(|| self.stages.loss_scale().map(LossScale::Known))
    }

    /// Lets the device choose the loss scale of the next window by this window's norm, `[1]`, if its decision moves it.
    fn loss_scale_by(&mut self, norm: &Tensor<1>) -> Option<Tensor<1>> {
        let after = |settled| self.stages.loss_scale_after(&settled);
        let applied = after(Settled::Applied)?;
        let skipped = after(Settled::Skipped(SkipReason::NonFinite))?;
        let skips = norm.clone().is_nan().bool_or(norm.clone().is_inf());
        (applied != skipped).then(|| Tensor::full_like(norm, applied).mask_fill(skips, skipped))
    }

    /// Returns the parameters to update, if the device may decide about their update on its own.
    fn left_to_device(&mut self, grads: &Grads) -> Option<HashSet<ParamId>> {
        let alone = self.world.size() == 1 && !self.deferred.is_empty();
        if !alone || grads.skip().is_some() || grads.known_norm().is_some() {
            return None;
        }
        let params = grads.ids(self.weights.pair().0);
        (!params.is_empty() && params.is_subset(&self.deferred)).then_some(params)
    }

    /// Updates the master; with a guard, only if that is finite.
    fn update(&mut self, grads: Grads, guard: Option<Tensor<1>>, step: &mut Step) -> Result<(), TrainError> {
        let rate = self.schedule.rate(self.updates, self.total_updates);
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(TrainError::LearningRate { update: self.updates, rate });
        }
        step.rate = rate;
        let Self {
            optimizer,
            disk,
            stages,
            tied,
            bytes,
            pass,
            weights,
            updates,
            budget,
            writes,
            moves,
            any_dtype,
            deferred,
            copies,
            arrives,
            parking,
            ..
        } = self;
        *copies = Copies::default();
        let Some((master, replica)) = weights.pair.take() else { return Ok(()) };
        drop(replica);
        let parked = disk.as_ref().and_then(|disk| disk.parked().cloned());
        let master = match &parked {
            None => stages.unalias_master(master),
            // An optimizer updates whatever has a value.
            Some(parked) => parked.outline(stages.unalias_master(master), Values::Master, true),
        };
        // Only a device's updates are deferred.
        let params = if is_host(pass.device()) { HashSet::new() } else { grads.ids(&master) };
        let grads = grads.for_update(&master, any_dtype);
        let given = Storages::of_gradients(&master, &grads);
        let state = FirstUpdate::begins(*updates == 0, &master, &grads, pass.device());
        let (input, is_tied, dtype) = ((&mut *optimizer, disk.as_mut(), master, grads), *tied, *writes);
        let (is_decided, before) = (guard.is_none(), deferrals());
        let is_copied = bytes.placement.master_on_host && !bytes.placement.replica_on_host;
        let most = moves.filter(|_| (is_copied || parked.is_some()) && stages.publishes_each());
        let waiting = parked.clone();
        let updated = move |(optimizer, disk, master, grads): Input<'_, M>| {
            let stepped = |master| match disk {
                Some(disk) => disk.step(optimizer, master, grads, |optimizer, master, part| {
                    (optimizer.step(rate, master, part.grads), Vec::new())
                }),
                None => optimizer.step(rate, master, grads),
            };
            // Burn's optimizer updates only the first place of a tied parameter, and updates in place only if nothing
            // else holds the tensor.
            let step = || match is_tied {
                true => tie(stepped(untie(master))),
                false => stepped(master),
            };
            let step = || renewed(waiting.as_deref(), step(), Values::Master);
            let update = || match guard.clone() {
                None => together(step),
                Some(guard) => together_if_finite(guard, step),
            };
            match dtype {
                None => (update(), None),
                Some(dtype) => {
                    let (master, written) = replicas(dtype, update);
                    (master, Some(written))
                }
            }
        };
        let (pair, written) = match most {
            Some(most) => {
                let way = Way { rate, is_tied, writes: dtype, most };
                published_in_parts(pass.device(), stages, input, way)?
            }
            None => published_from(pass.device(), stages, input, is_decided, updated)?,
        };
        let all_deferred = deferrals() - before == params.len() as u64;
        debug_assert!(is_decided || all_deferred, "the device decides about updates that it makes");
        match all_deferred {
            true => deferred.extend(params),
            false => deferred.clear(),
        }
        // No stage casts the master itself, or the optimizer does not support it: stop writing the copies.
        *writes = writes.filter(|_| written.taken > 0);
        // Burn's own clipping computes in the gradient's dtype.
        *any_dtype = if optimizer.has_gradient_clipping() { HashSet::new() } else { written.params };
        // What is on its way would be missing in the measurement.
        let pair = if state.measures() { arrived(pass.device(), stages, pair) } else { pair };
        match (disk.as_mut(), state.ends(&pair.0, &pair.1, pass.device())) {
            (Some(disk), _) => bytes.count_disk(disk.bytes(), disk.file()),
            (None, Some(measured)) => bytes.optimizer = measured,
            // If nothing measures it, a run with a budget reads the optimizer's state once.
            (None, None) if *updates == 0 && budget.is_some() => {
                bytes.optimizer = StateSize::of(optimizer, &pair.0).bytes;
            }
            (None, None) => {}
        }
        if let Some(parked) = parked {
            *parking = Some(Parking::of(parked, &pair.1));
        }
        *weights = Weights::new(pair);
        *arrives = true;
        disk.as_mut().map_or(Ok(()), OnDisk::check)?;
        let gradients = if bytes.placement.master_on_host { 0 } else { given };
        if self.is_there() {
            self.arrive()?;
        }
        self.updates += 1;
        step.update = self.updates;
        let found = OnDevice { gradients, ..OnDevice::between_steps(&self.bytes) };
        self.check_budget(found, Moment::Update)
    }
}
