//! A training run's live state: master, replica, optimizer, and one step.

mod finite;
mod prepared;
mod saved;
mod whole;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use burn::module::{Module, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrick_datasets::{Batch, DataError};
use firebrick_kernels::Draws;
use firebrick_kernels::optim::{Replicas, replicas, together};
use firebrick_strategies::{
    Adaptation, Grads, Outcome, Pass, Settled, SkipReason, Stages, StrategyError, float_name, tie, untie,
};
use firebrick_world::Communicator;

use crate::accounting::budget::{Moment, OnDevice, OverBudget};
use crate::accounting::{FirstUpdate, ParameterBytes, Placement, trainable_bytes};
use crate::checkpoint::{Layout, StateSize};
use crate::engine::agreement::{WindowOfAll, agreed_skip};
use crate::engine::feed::{MicroBatch, Window};
use crate::engine::late::Late;
use crate::engine::step::Step;
use crate::memory::{Beyond, Storages, Taken};
use crate::observe::rank_report::Exchanged;
use crate::{Loss, LrSchedule, Objective, TrainError};

pub use prepared::Prepared;

/// The state of a run between two steps.
pub struct Session<M> {
    stages: Stages<M>,
    /// The changes made to the model before the run.
    adaptation: Adaptation,
    /// The names of the master's tensors, and the part of each that this rank saves.
    layout: Arc<Layout>,
    weights: Weights<M>,
    optimizer: ModuleOptimizer,
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
    /// The limit on the bytes on the device.
    budget: Option<usize>,
    /// This rank's communicator.
    world: Communicator,
    /// The dtype in which an update also writes the replica, as long as publishing uses these copies.
    writes: Option<FloatDType>,
    /// The parameters whose last update would have read a gradient in any dtype.
    any_dtype: HashSet<ParamId>,
    /// The loss of the last window, which nothing may have read yet.
    unread: Option<Late>,
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

/// What an update wrote besides the master.
#[derive(Default)]
struct Written {
    /// The number of the replica's parameters that are copies written by the update.
    taken: usize,
    /// The parameters that have such a copy.
    params: HashSet<ParamId>,
}

/// Publishes the master: informs the stages of it, and returns master and replica with the copies that the update wrote. Tensors that outlive a step are allocated in the device's
/// persistent pool, apart from the activations of each step. An update's temporaries are allocated there too: they
/// have the sizes of parameters, and the next update reuses them.
fn published<M: Module, I: Send>(
    device: &Device,
    stages: &mut Stages<M>,
    input: I,
    master: impl Fn(I) -> (M, Option<Replicas>) + Send + Sync,
) -> Result<((M, M), Written), StrategyError> {
    device.memory_persistent_allocations((input, stages), |(input, stages)| {
        let (master, written) = master(input);
        stages.updated(&master);
        let mut publish = || stages.publish(master.clone());
        let (replica, written) = match written {
            None => (publish(), Written::default()),
            Some(written) => {
                let params = written.params(&master);
                let (replica, taken) = written.lend(publish);
                (replica, Written { taken, params })
            }
        };
        let replica = replica?;
        let master = stages.alias_master(master, &replica);
        Ok(((master, replica), written))
    })
}

impl<M: Module> Session<M> {
    /// Enforces a budget of bytes on the device, if there is one. `states` is a lower bound on the tensors of
    /// parameter size that the optimizer keeps per parameter, as far as it is known.
    pub fn within(mut self, budget: Option<usize>, states: f64) -> Result<Self, TrainError> {
        self.budget = budget;
        let (master, replica) = self.weights.pair();
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
    /// `stops` says whether this rank wants to end the run after this step; [`Step::stops`] says whether any rank
    /// does. `spare` supplies a batch for a rank that has no items but must take part in a collective pass.
    pub(crate) fn step<B: Batch>(
        &mut self,
        window: Window<B>,
        stops: bool,
        mut spare: impl FnMut() -> Result<B, DataError>,
    ) -> Result<Step, TrainError>
    where
        M: Objective<B>,
    {
        let started = Instant::now();
        let before = Exchanged::of(&self.world);
        let of_all = WindowOfAll::agree(&self.world, &window, stops)?;
        let items = of_all.items.iter().sum();
        let mut step = Step::new(self.updates, items, of_all.tokens);
        step.stops = of_all.stops;
        step.loss_scale = self.stages.loss_scale();
        if items == 0 {
            self.skip(SkipReason::NoItems, &mut step)?;
            step.sample_memory(self.device());
            step.bytes = self.bytes;
            return Ok(step);
        }
        let last = window.batches.len() - 1;
        let mut outcome = Outcome::Hold;
        // Bytes of gradients: the most that a pass left, the most that the stages held, and what they hold now.
        let (mut left, mut held, mut holds) = (0, 0, 0);
        for (index, MicroBatch { batch, first }) in window.batches.into_iter().enumerate() {
            let closes = index == last;
            let draws = Draws { seed: self.seed, epoch: window.epoch, first };
            let (grads, taken) = match batch.filter(|batch| batch.items() > 0) {
                Some(batch) => self.gradients(batch, draws, items, closes, &mut step)?,
                None if of_all.items[index] > 0 && self.pass.is_collective() => {
                    (self.silence(spare()?, draws, closes)?, Taken::default())
                }
                // Without items, not even a NaN of the activations may count.
                None => (Grads::new(GradientsParams::new(), closes), Taken::default()),
            };
            let (master, replica) = self.weights.pair();
            let leaves = grads.bytes(replica);
            let Placement { master_on_host, held_on_host, .. } = self.bytes.placement;
            let gone_down = if master_on_host { grads.delivered_bytes() } else { 0 };
            let held_here = if held_on_host { 0 } else { holds };
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
        // If a stage holds the sum, the gradients of a backward pass are only transient.
        let gradients = if held > 0 { held } else { left };
        self.bytes.gradients = gradients.max(self.bytes.gradients);
        self.settle(outcome, &mut step)?;
        self.unread = step.end_loss();
        step.exchanged = Exchanged::of(&self.world).since(&before);
        step.sample_memory(self.device());
        step.bytes = self.bytes;
        step.seconds = started.elapsed().as_secs_f64();
        Ok(step)
    }

    /// Runs forward and backward on one micro-batch. Returns its share of the gradients of the window's mean loss,
    /// and the bytes that the pass took.
    fn gradients<B: Batch>(
        &self,
        batch: B,
        draws: Draws,
        window: usize,
        closes: bool,
        step: &mut Step,
    ) -> Result<(Grads, Taken), TrainError>
    where
        M: Objective<B>,
    {
        let replica = self.weights.pair().1;
        let expected = batch.items();
        let activations = Beyond::begin(self.device());
        let (model, pass) = self.pass.drawing(draws).enter(replica)?;
        let Loss { sum, items } = model.loss(batch, &pass);
        if pass.smooths_in_vain() {
            return Err(TrainError::LabelsNotSmoothed);
        }
        let loss = checked(sum, items, expected)? / window as f64;
        step.add_loss(loss.clone().inner());
        step.sample_memory(self.device());
        let scaled = if let Some(scale) = step.loss_scale { loss * scale } else { loss };
        let grads = scaled.backward();
        let taken = activations.end(self.device());
        step.add_activations(taken.activations);
        Ok((pass.gradients(grads, &model, closes)?, taken))
    }

    /// Runs forward and backward along with the other ranks, contributing nothing.
    fn silence<B: Batch>(&self, batch: B, draws: Draws, closes: bool) -> Result<Grads, TrainError>
    where
        M: Objective<B>,
    {
        let (model, pass) = self.pass.drawing(draws).silent(true).enter(self.weights.pair().1)?;
        let grads = model.loss(batch, &pass).sum.backward();
        Ok(pass.gradients(grads, &model, closes)?)
    }

    /// Applies or skips the window's gradients.
    fn settle(&mut self, outcome: Outcome, step: &mut Step) -> Result<(), TrainError> {
        let fit = match outcome {
            Outcome::Apply(mut grads) => {
                // The norm decides about the update, and is also the reported number. The last window's loss is
                // read with it: a step waits for the device once.
                let late = self.unread.take();
                let others = late.iter().filter_map(Late::unread).collect();
                let (norm, losses) = grads.read_norm(self.weights.pair().0, others)?;
                step.norm = norm;
                late.iter().zip(losses).for_each(|(late, loss)| late.known(loss));
                match grads.skip() {
                    Some(reason) => Err(reason.clone()),
                    None if grads.is_empty() => return Err(TrainError::NoGradients),
                    // In every precision: one such number makes all weights that it reaches non-finite.
                    None if !step.norm.is_finite() => Err(SkipReason::NonFinite),
                    None => Ok(grads),
                }
            }
            Outcome::Skip(reason) => Err(reason),
            // The closing micro-batch cannot be held: `Stages::collect` returns an error.
            Outcome::Hold => Err(SkipReason::NoItems),
        };
        match (agreed_skip(&self.world, fit.as_ref().err().cloned())?, fit) {
            (None, Ok(grads)) => {
                let gradients = self.update(grads, step)?;
                let found = OnDevice { gradients, ..OnDevice::between_steps(&self.bytes) };
                self.check_budget(found, Moment::Update)?;
                Ok(self.stages.after_window(&step.settled)?)
            }
            (Some(reason), _) | (None, Err(reason)) => self.skip(reason, step),
        }
    }

    fn skip(&mut self, reason: SkipReason, step: &mut Step) -> Result<(), TrainError> {
        step.settled = Settled::Skipped(reason);
        Ok(self.stages.after_window(&step.settled)?)
    }

    /// Updates the master. Returns the bytes of the gradients that the optimizer was given on the device.
    fn update(&mut self, grads: Grads, step: &mut Step) -> Result<usize, TrainError> {
        let rate = self.schedule.rate(self.updates, self.total_updates);
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(TrainError::LearningRate { update: self.updates, rate });
        }
        step.rate = rate;
        let Self {
            optimizer, stages, tied, bytes, pass, weights, updates, budget, writes, any_dtype, ..
        } = self;
        let Some((master, replica)) = weights.pair.take() else { return Ok(0) };
        drop(replica);
        let master = stages.unalias_master(master);
        let grads = grads.for_update(&master, any_dtype);
        let given = Storages::of_gradients(&master, &grads);
        let state = FirstUpdate::begins(*updates == 0, &master, &grads, pass.device());
        let (input, is_tied, dtype) = ((&mut *optimizer, master, grads), *tied, *writes);
        let (pair, written) = published(pass.device(), stages, input, |(optimizer, master, grads)| {
            // Burn's optimizer updates only the first place of a tied parameter, and updates in place only if nothing
            // else holds the tensor.
            let update = || {
                together(|| match is_tied {
                    true => tie(optimizer.step(rate, untie(master), grads)),
                    false => optimizer.step(rate, master, grads),
                })
            };
            match dtype {
                None => (update(), None),
                Some(dtype) => {
                    let (master, written) = replicas(dtype, update);
                    (master, Some(written))
                }
            }
        })?;
        // No stage casts the master itself, or the optimizer does not support it: stop writing the copies.
        *writes = writes.filter(|_| written.taken > 0);
        // Burn's own clipping computes in the gradient's dtype.
        *any_dtype = if optimizer.has_gradient_clipping() { HashSet::new() } else { written.params };
        bytes.optimizer = match state.ends(&pair.0, &pair.1, pass.device()) {
            Some(measured) => measured,
            // If nothing measures it, a run with a budget reads the optimizer's state once.
            None if *updates == 0 && budget.is_some() => StateSize::of(optimizer, &pair.0).bytes,
            None => bytes.optimizer,
        };
        bytes.count(&pair.0, &pair.1, stages.averaged().as_ref());
        *weights = Weights::new(pair);
        self.updates += 1;
        step.update = self.updates;
        Ok(if bytes.placement.master_on_host { 0 } else { given })
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
                self.stages.evaluator(&averaged, replica)?
            }
            None => {
                let (master, replica) = self.weights.pair();
                self.stages.evaluator(master, replica.clone())?
            }
        };
        Ok(evaluator.valid())
    }

    /// The parameters that the optimizer updates.
    pub fn master(&self) -> &M {
        self.weights.pair().0
    }

    /// The replica, as shared among the ranks.
    pub fn replica(&self) -> &M {
        self.weights.pair().1
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
    /// Counts the optimizer's state by reading it, a few parameters at a time; call it at the end of a run only.
    pub fn bytes(&self) -> ParameterBytes {
        let optimizer = StateSize::of(&self.optimizer, self.master()).bytes;
        ParameterBytes { optimizer, ..self.bytes }
    }

    /// This rank's communicator.
    pub fn world(&self) -> &Communicator {
        &self.world
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
