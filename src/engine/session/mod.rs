//! A training run's live state: master, replica, optimizer, and one step.

mod awaited;
mod counted;
mod finite;
mod in_parts;
mod looks;
mod parked;
mod prepared;
mod published;
mod saved;
mod update;
mod whole;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use burn::module::{Module, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrick_datasets::Batch;
use firebrick_kernels::Draws;
use firebrick_strategies::{Adaptation, Grads, Outcome, Pass, SkipReason, Stages, float_name};
use firebrick_world::{Activity, Communicator, is_host};
use tracing::warn;

use crate::accounting::budget::{Moment, OnDevice, OverBudget};
use crate::accounting::{ParameterBytes, Placement, trainable_bytes};
use crate::checkpoint::{Layout, OnDisk, StateSize};
use crate::engine::agreement::{Tells, WindowOfAll};
use crate::engine::feed::{Feed, MicroBatch, Window};
use crate::engine::step::Step;
use crate::memory::Taken;
use crate::scratch::Values;
use crate::{Loss, LrSchedule, Objective, TrainError};

use awaited::Awaited;
use counted::Counted;
use looks::{Look, Looks};
use parked::Parking;
pub use prepared::Prepared;
use update::{LossScale, Undecided};
use whole::Copies;
pub use whole::Whole;

/// The state of a run between two steps.
pub struct Session<M> {
    stages: Stages<M>,
    /// The changes made to the model before the run.
    adaptation: Adaptation,
    /// The names of the master's tensors, and the part of each that this rank saves.
    layout: Arc<Layout>,
    weights: Weights<M>,
    /// Whether parameters of the replica may still be on their way from other ranks.
    arrives: bool,
    /// Counts what is exchanged for each step.
    counted: Counted,
    /// Has no state between two updates if a disk keeps it.
    optimizer: ModuleOptimizer,
    disk: Option<OnDisk>,
    /// The parameters of blocks that wait on the disk.
    parking: Option<Parking>,
    schedule: Arc<dyn LrSchedule>,
    /// The number of updates that the schedule spans.
    total_updates: u64,
    updates: u64,
    /// Seeds the model's random draws.
    seed: u64,
    tied: bool,
    /// A training pass as the strategies configure it.
    pass: Pass,
    evaluation_dtype: FloatDType,
    bytes: ParameterBytes,
    looks: Looks,
    copies: Copies<M>,
    /// The limit on the bytes on the device.
    budget: Option<usize>,
    /// This rank's communicator.
    world: Communicator,
    /// The dtype in which an update also writes the replica, as long as publishing uses these copies.
    writes: Option<FloatDType>,
    /// The most bytes that go in one copy between host and device, if a strategy moves any.
    moves: Option<usize>,
    /// The parameters whose last update would have read a gradient in any dtype.
    any_dtype: HashSet<ParamId>,
    /// The parameters whose updates are left to the end of an update, where the device can decide about them.
    deferred: HashSet<ParamId>,
    /// The last update, if the device decides about it and nothing has read its decision.
    undecided: Option<Undecided>,
    /// The next window over all ranks, if they have told each other of it.
    next: Option<WindowOfAll>,
}

/// Master and replica. The pair is absent only during an update, because the optimizer changes the master in place
/// only if nothing else holds its tensors.
struct Weights<M> {
    pair: Option<(M, M)>,
}

impl<M> Weights<M> {
    fn new(pair: (M, M)) -> Self {
        Self { pair: Some(pair) }
    }

    fn pair(&self) -> (&M, &M) {
        let (master, replica) = self.pair.as_ref().expect("master and replica are back after each update");
        (master, replica)
    }
}

impl<M: Module> Session<M> {
    /// Enforces a budget of bytes on the device, if there is one. `states` is a lower bound on the tensors of
    /// parameter size that the optimizer keeps per parameter, as far as it is known.
    pub fn within(mut self, budget: Option<usize>, states: f64) -> Result<Self, TrainError> {
        self.budget = budget;
        let (master, replica) = self.weights.pair();
        let (master, replica) =
            (&self.outline(master, Values::Master), &self.outline(replica, Values::Replica));
        // A lower bound: blocks may hand their gradients to the host, or to other ranks, one after the other.
        let gradients = match self.bytes.placement.master_on_host {
            true => 0,
            false => trainable_bytes(replica).min(trainable_bytes(master)),
        };
        let optimizer = (states * trainable_bytes(master) as f64) as usize;
        let found = OnDevice::between_steps(&ParameterBytes { optimizer, ..self.bytes });
        self.check_budget(OnDevice { gradients, ..found }, Moment::Start)?;
        Ok(self)
    }

    /// Smooths the labels of losses over classes by this share during training.
    pub fn smoothing_labels(self, share: f64) -> Self {
        Self { pass: self.pass.smoothing_labels(share), ..self }
    }

    fn check_budget(&self, found: OnDevice, moment: Moment) -> Result<(), TrainError> {
        match self.budget {
            None => Ok(()),
            Some(budget) => Ok(OverBudget::check(budget, found, moment)?),
        }
    }

    /// Runs one window: forward and backward of each micro-batch, then the update unless it is skipped.
    ///
    /// `feed` supplies a batch for a rank that has no items but must take part in a collective pass, and the window that
    /// several ranks tell each other of in advance. [`Step::of_all`] says what all ranks `tell`.
    pub(crate) fn step<B: Batch>(
        &mut self,
        window: Window<B>,
        feed: &mut Feed<B>,
        tells: Tells,
    ) -> Result<Step, TrainError>
    where
        M: Objective<B>,
    {
        self.renew();
        let step = self.make_step(window, feed, tells);
        self.having_read(step)
    }

    fn make_step<B: Batch>(
        &mut self,
        window: Window<B>,
        feed: &mut Feed<B>,
        tells: Tells,
    ) -> Result<Step, TrainError>
    where
        M: Objective<B>,
    {
        let started = Instant::now();
        let before = self.counted.begin(&self.world);
        let of_all = match self.next.take() {
            Some(of_all) => of_all,
            None => WindowOfAll::agree(&self.world, &window)?,
        };
        let items = of_all.items.iter().sum();
        let mut step = Step::new(self.updates, items, of_all.tokens);
        if items == 0 {
            let agreement = self.telling(&mut step, feed, tells, before);
            self.settle(Outcome::Skip(SkipReason::NoItems), agreement, &mut step)?;
            self.looks.without_pass(&mut step, self.pass.device());
            step.bytes = self.bytes;
            return Ok(step);
        }
        let look = self.looks.begin();
        if look == Look::Everything && !is_host(self.pass.device()) {
            // In a device's pool, parameters that come during the pass would count as its own.
            self.arrive()?;
        }
        let pass = self.pass.of_window();
        let last = window.batches.len() - 1;
        let (mut outcome, mut agreement) = (Outcome::Hold, None);
        // Bytes of gradients: the most that a pass left, the most that the stages held, and what they hold now.
        let (mut left, mut held, mut holds) = (0, 0, 0);
        for (index, MicroBatch { batch, first }) in window.batches.into_iter().enumerate() {
            let closes = index == last;
            let draws = Draws { seed: self.seed, epoch: window.epoch, first };
            let Placement { master_on_host, held_on_host, .. } = self.bytes.placement;
            let held_here = if held_on_host { 0 } else { holds };
            let (grads, taken) = match batch.filter(|batch| batch.items() > 0) {
                Some(batch) => {
                    let looks = (look, held_here);
                    self.gradients(&pass.drawing(draws), batch, items, closes, looks, &mut step)?
                }
                None if of_all.items[index] > 0 && self.pass.is_collective() => {
                    (self.silence(pass.drawing(draws), feed.spare()?, closes)?, Taken::default())
                }
                // Without items, not even a NaN of the activations may count.
                None => (Grads::new(GradientsParams::new(), closes), Taken::default()),
            };
            // By now the device has decided about the last update, and has this pass to compute.
            self.confirm()?;
            step.loss_scale = self.stages.loss_scale();
            if closes {
                agreement = self.telling(&mut step, feed, tells, before.clone());
            }
            let grads = grads.agreeing(agreement.clone());
            let (master, replica) = self.weights.pair();
            let leaves = grads.bytes(replica);
            let gone_down = if master_on_host { grads.delivered_bytes() } else { 0 };
            let found = OnDevice {
                activations: taken.most.saturating_sub(leaves),
                gradients: held_here + leaves - gone_down,
                ..OnDevice::between_steps(&self.bytes)
            };
            self.check_budget(found, Moment::Pass)?;
            outcome = match (closes, self.stages.collect(master, grads)?) {
                (true, outcome) => outcome,
                (false, Outcome::Hold) => Outcome::Hold,
                // The next micro-batch's gradients would replace these.
                (false, _) => return Err(TrainError::NotSummed),
            };
            holds = self.stages.held_bytes();
            (left, held) = (left.max(leaves), held.max(holds));
        }
        // If the last micro-batch has no pass, what the others shared still has to make room for the update.
        drop(pass);
        // If a stage holds the sum, the gradients of a backward pass are only transient.
        let gradients = if held > 0 { held } else { left };
        self.bytes.gradients = gradients.max(self.bytes.gradients);
        let span = self.world.timeline().span(Activity::Update, String::new);
        self.settle(outcome, agreement, &mut step)?;
        drop(span);
        step.exchanged = self.counted.end(&self.world, &before);
        self.looks.end(look, &mut step, self.pass.device());
        step.bytes = self.bytes;
        step.seconds = started.elapsed().as_secs_f64();
        Ok(step)
    }

    /// Runs forward and backward on one micro-batch, in a pass of its window. Returns its share of the gradients of the
    /// window's mean loss, and the bytes that the pass took, by what this window looks at and the bytes of gradients that
    /// the stages hold.
    fn gradients<B: Batch>(
        &mut self,
        pass: &Pass,
        batch: B,
        window: usize,
        closes: bool,
        (look, held): (Look, usize),
        step: &mut Step,
    ) -> Result<(Grads, Taken), TrainError>
    where
        M: Objective<B>,
    {
        let scale = self.loss_scale();
        let (master, replica) = self.weights.pair();
        let (awaited, expected) = (Awaited::of(replica), batch.items());
        let beyond = self.looks.begin_pass(look, pass.shared_bytes(), self.pass.device());
        let (model, pass) = pass.enter(replica)?;
        let timed = |activity| self.world.timeline().span(activity, || "the model".into());
        let span = timed(Activity::Forward);
        let Loss { sum, items } = model.loss(batch, &pass);
        drop(span);
        if pass.smooths_in_vain() {
            return Err(TrainError::LabelsNotSmoothed);
        }
        let stay = pass.not_in_fp8()?;
        if !stay.is_empty() && self.world.rank() == 0 {
            warn!("in bf16, not in 8 bits, since an axis is no multiple of 16: {}", stay.join(", "));
        }
        let loss = checked(sum, items, expected)? / window as f64;
        step.add_loss(loss.clone().inner());
        self.looks.after_forward(look, closes, step, self.pass.device());
        let scaled = match scale {
            None => loss,
            Some(LossScale::Known(scale)) => loss * scale,
            Some(LossScale::OnDevice(scale)) => loss * Tensor::from_inner(*scale),
        };
        let span = timed(Activity::Backward);
        let grads = scaled.backward();
        drop(span);
        let taken = self.looks.end_pass(beyond, held, step, self.pass.device());
        awaited.check(master, replica)?;
        let grads = pass.gradients(grads, &model, closes)?;
        self.adaptation.check()?;
        Ok((grads, taken))
    }

    /// Runs forward and backward along with the other ranks, contributing nothing.
    fn silence<B: Batch>(&self, pass: Pass, batch: B, closes: bool) -> Result<Grads, TrainError>
    where
        M: Objective<B>,
    {
        let (model, pass) = pass.silent(true).enter(self.weights.pair().1)?;
        let grads = model.loss(batch, &pass).sum.backward();
        Ok(pass.gradients(grads, &model, closes)?)
    }

    /// The number of updates made so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The model to evaluate, outside autodiff and with dropout off: the replica, unless a strategy has another.
    pub fn evaluator(&mut self) -> Result<M, TrainError> {
        let evaluator = match self.stages.averaged() {
            Some(averaged) => {
                let replica = self.stages.publish(averaged.clone())?;
                // Do not reuse the stage's alias between the last published model and the master: it belongs to the
                // average here.
                drop(self.stages.alias_master(averaged.clone(), &replica));
                self.pass.check()?;
                self.stages.evaluator(&averaged, replica)?
            }
            None => {
                let (master, replica) = self.weights.pair();
                self.stages.evaluator(master, replica.clone())?
            }
        };
        let valid = self.valid(&evaluator);
        self.having_read(Ok(valid))
    }

    /// The parameters that the optimizer updates.
    pub fn master(&self) -> &M {
        self.weights.pair().0
    }

    /// The replica, as shared among the ranks.
    pub fn replica(&self) -> &M {
        self.weights.pair().1
    }

    /// The replica in validation mode.
    pub fn valid_replica(&self) -> M {
        self.valid(self.replica())
    }

    /// A training pass as the strategies configure it.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The dtype of evaluation.
    pub fn evaluation_dtype(&self) -> FloatDType {
        self.evaluation_dtype
    }

    /// Whether the loss is scaled.
    pub fn scales_loss(&mut self) -> bool {
        self.stages.loss_scale().is_some()
    }

    /// Bytes of master, replica, gradients and optimizer state.
    ///
    /// On a device or a disk the first update has measured the optimizer's state. Elsewhere it is counted by reading it, a few
    /// parameters at a time; call it at the end of a run only.
    pub fn bytes(&self) -> ParameterBytes {
        let on_device = !self.master().devices().iter().all(is_host);
        if self.disk.is_some() || on_device && self.bytes.optimizer > 0 {
            return self.bytes;
        }
        let optimizer = StateSize::of(&self.optimizer, self.master()).bytes;
        ParameterBytes { optimizer, ..self.bytes }
    }

    /// This rank's communicator.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Whether a strategy has added low-rank adapters to the model.
    pub fn is_adapted(&self) -> bool {
        self.adaptation.low_rank().is_some()
    }

    /// The device that evaluation runs on.
    pub fn device(&self) -> &Device {
        self.pass.device()
    }
}

/// Returns the sum of a loss after checking its count and dtype.
pub fn checked(sum: Tensor<1>, items: usize, expected: usize) -> Result<Tensor<1>, TrainError> {
    if items != expected {
        return Err(TrainError::Items { loss: items, batch: expected });
    }
    match sum.dtype() {
        DType::F32 | DType::F64 => Ok(sum),
        other => Err(TrainError::LossDtype(float_name(other.into()).into())),
    }
}
