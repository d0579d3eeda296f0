//! A training run's live state: master, replica, optimizer, and one step.
//!
//! ```text
//! prepared.rs  a run whose strategies have started, and how its session begins
//! passes.rs    the passes of a step, and those between forward and backward
//! weights.rs   master and replica, and where their values are
//! update.rs    applies the gradients of a step, skips them, or leaves the decision to the device
//! updater.rs   the optimizer with its schedule; a new master becomes master and replica, whole or part by part
//! memory.rs    the bytes that a session holds, and their limit
//! ranks.rs     what ranks tell each other of a step
//! saved.rs     a session's part of a checkpoint, and the model that it returns
//! ```

mod memory;
mod passes;
mod prepared;
mod ranks;
mod saved;
mod update;
mod updater;
mod weights;

use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrick_datasets::Batch;
use firebrick_strategies::{Adaptation, Grads, Outcome, Pass, PipelineStep, SkipReason, Stages, float_name};
use firebrick_world::{Activity, Communicator, is_host};
use tracing::warn;

use crate::accounting::budget::{Moment, OnDevice};
use crate::accounting::{ParameterBytes, trainable_bytes};
use crate::checkpoint::{Layout, StateSize};
use crate::engine::agreement::Tells;
use crate::engine::feed::{Feed, RankBatch, Share};
use crate::engine::step::Step;
use crate::observe::rank_report::Exchanged;
use crate::scratch::Values;
use crate::{Loss, Objective, TrainError};

use memory::MemoryProbe;
use passes::{Forward, PassBatch, Passes};
pub use prepared::PreparedRun;
use ranks::Ranks;
pub use saved::Whole;
use update::LossScale;
use updater::Updater;
use weights::{AwaitedParams, Weights};

/// The state of a run between two steps.
pub struct Session<M> {
    stages: Stages<M>,
    /// The changes made to the model before the run.
    adaptation: Adaptation,
    /// The names of the master's tensors, and the part of each that this rank saves.
    layout: Arc<Layout>,
    weights: Weights<M>,
    updater: Updater,
    /// A training pass as the strategies configure it.
    pass: Pass,
    memory: MemoryProbe,
    ranks: Ranks,
    /// Seeds the model's random draws.
    seed: u64,
    evaluation_dtype: FloatDType,
}

impl<M: Module> Session<M> {
    /// Enforces a budget of bytes on the device, if there is one. `states` is a lower bound on the tensors of
    /// parameter size that the optimizer keeps per parameter, as far as it is known.
    pub fn within(mut self, budget: Option<usize>, states: f64) -> Result<Self, TrainError> {
        let Self { weights, memory, .. } = &mut self;
        memory.budget = budget;
        let master = &weights.outline(weights.master(), Values::Master);
        let replica = &weights.outline(weights.replica(), Values::Replica);
        // A lower bound: blocks may hand their gradients to the host, or to other ranks, one after the other.
        let gradients = match memory.bytes.placement.master_on_host {
            true => 0,
            false => trainable_bytes(replica).min(trainable_bytes(master)),
        };
        let optimizer = (states * trainable_bytes(master) as f64) as usize;
        let found = OnDevice::between_steps(&ParameterBytes { optimizer, ..memory.bytes });
        memory.check(OnDevice { gradients, ..found }, Moment::Start)?;
        Ok(self)
    }

    /// Smooths the labels of losses over classes by this share during training.
    pub fn smoothing_labels(self, share: f64) -> Self {
        Self { pass: self.pass.smoothing_labels(share), ..self }
    }

    /// Runs one optimizer step: forward and backward of each micro-batch, then the update unless it is skipped.
    ///
    /// `feed` supplies a batch for a rank that has no items but must take part in a collective pass, and the next global
    /// batch, of which several ranks tell each other in advance. [`Step::of_all`] says what all ranks `tell`.
    pub(crate) fn step<B: Batch>(
        &mut self,
        batch: RankBatch<B>,
        feed: &mut Feed<B>,
        tells: Tells,
    ) -> Result<Step, TrainError>
    where
        M: Objective<B>,
    {
        self.weights.renew();
        let step = self.run(batch, feed, tells);
        self.having_read(step)
    }

    fn run<B: Batch>(
        &mut self,
        batch: RankBatch<B>,
        feed: &mut Feed<B>,
        tells: Tells,
    ) -> Result<Step, TrainError>
    where
        M: Objective<B>,
    {
        let (started, before) = (Instant::now(), self.ranks.begin());
        let of_all = self.ranks.global_counts(&batch)?;
        let mut step = Step::new(self.updater.updates, of_all.items.iter().sum(), of_all.tokens);
        if step.items == 0 {
            return self.without_items(step, feed, tells, &before);
        }
        if self.memory.begin() {
            self.arrive()?;
        }
        let passes = self.pass.of_step();
        let mut batches = Passes::new(batch, of_all.items, self.pass.is_collective(), self.seed);
        let (mut outcome, mut agreement) = (Outcome::Hold, None);
        // Without a pipeline, forward and backward passes take turns.
        for order in batches.steps(&passes) {
            let at = match order {
                PipelineStep::Backward { micro_batch, chunk } => (micro_batch, chunk),
                PipelineStep::Forward { micro_batch, chunk } => {
                    self.forward(&passes, (micro_batch, chunk), &mut batches, feed, &mut step)?;
                    continue;
                }
            };
            let (grads, closes) = self.backward(at, &mut batches, &mut step)?;
            // By now the device has decided about the last update, and has this pass to compute.
            self.confirm()?;
            step.loss_scale = self.stages.loss_scale();
            if closes {
                agreement = self.ranks.telling(self.updater.updates, &mut step, feed, tells, &before);
            }
            // Reduce, sum and transform: each strategy at its place.
            let grads = grads.agreeing(agreement.clone()).dividing(self.adaptation.parts().cloned());
            self.memory.before_collect(&grads, self.weights.replica())?;
            outcome = self.stages.collect(self.weights.master(), grads)?;
            self.memory.after_collect(self.stages.held_bytes());
            if !closes && !matches!(outcome, Outcome::Hold) {
                // The next micro-batch's gradients would replace these.
                return Err(TrainError::NotSummed);
            }
        }
        // If the last micro-batch has no pass, what the others shared still has to make room for the update.
        drop(passes);
        self.memory.end_passes();
        // Update and publish.
        let span = self.ranks.world.timeline().span(Activity::Update, String::new);
        self.settle(outcome, agreement, &mut step)?;
        drop(span);
        step.exchanged = self.ranks.end(&before);
        self.memory.end(&mut step);
        step.seconds = started.elapsed().as_secs_f64();
        Ok(step)
    }

    /// Ends a step in which no rank has items, without an update.
    fn without_items<B: Batch>(
        &mut self,
        mut step: Step,
        feed: &mut Feed<B>,
        tells: Tells,
        before: &Exchanged,
    ) -> Result<Step, TrainError> {
        let agreement = self.ranks.telling(self.updater.updates, &mut step, feed, tells, before);
        self.settle(Outcome::Skip(SkipReason::NoItems), agreement, &mut step)?;
        self.memory.without_pass(&mut step);
        Ok(step)
    }

    /// Runs a micro-batch forward, in a pass of its step.
    fn forward<B: Batch>(
        &mut self,
        passes: &Pass,
        at: (usize, usize),
        batches: &mut Passes<B, M>,
        feed: &mut Feed<B>,
        step: &mut Step,
    ) -> Result<(), TrainError>
    where
        M: Objective<B>,
    {
        let forward = match batches.given(at, passes, feed)? {
            None => None,
            // Runs along with the other ranks, contributing nothing.
            Some((PassBatch::Spare(batch), pass)) => {
                let awaited = AwaitedParams::of(self.weights.replica());
                let (model, pass) = pass.empty_batch(true).enter(self.weights.replica())?;
                let loss = pass.forward(|| model.loss(batch, &pass).sum)?;
                Some(Forward { model, pass, loss, awaited })
            }
            Some((PassBatch::Own(batch), pass)) => {
                if batches.are_over() {
                    batches.beyond = self.memory.begin_pass(&pass);
                }
                Some(self.forward_of(&pass, batch, step)?)
            }
        };
        batches.hold(at, forward);
        Ok(())
    }

    /// Runs a batch forward, up to its share of the mean loss of the step.
    fn forward_of<B: Batch>(
        &mut self,
        pass: &Pass,
        batch: B,
        step: &mut Step,
    ) -> Result<Forward<M>, TrainError>
    where
        M: Objective<B>,
    {
        let scale = self.loss_scale();
        let replica = self.weights.replica();
        let (awaited, expected) = (AwaitedParams::of(replica), batch.items());
        let (model, pass) = pass.enter(replica)?;
        let span = self.ranks.world.timeline().span(Activity::Forward, || "the model".into());
        let found = pass.forward(|| model.loss(batch, &pass))?;
        drop(span);
        let stay = pass.not_in_fp8()?;
        if !stay.is_empty() && self.ranks.world.rank() == 0 {
            warn!("in bf16, not in 8 bits, since an axis is no multiple of 16: {}", stay.join(", "));
        }
        let Some(Loss { sum, items }) = found else {
            return Ok(Forward { model, pass, loss: None, awaited });
        };
        if pass.smooths_in_vain() {
            return Err(TrainError::LabelsNotSmoothed);
        }
        if pass.repeats_batch() {
            return Err(TrainError::TokensNotDivided);
        }
        let loss = checked(sum, items, expected)? / step.items as f64;
        if pass.adds_results() {
            step.add_loss(loss.clone().inner());
        }
        let loss = match scale {
            None => loss,
            Some(LossScale::Known(scale)) => loss * scale,
            Some(LossScale::OnDevice(scale)) => loss * Tensor::from_inner(*scale),
        };
        Ok(Forward { model, pass, loss: Some(loss), awaited })
    }

    /// Runs the backward pass of a micro-batch that has run forward. Returns its share of the gradients of the mean
    /// loss of the step, and whether it is the step's last one.
    fn backward<B: Batch>(
        &mut self,
        at: (usize, usize),
        batches: &mut Passes<B, M>,
        step: &mut Step,
    ) -> Result<(Grads, bool), TrainError> {
        let (forward, closes) = batches.end(at);
        let Some(Forward { model, pass, loss, awaited }) = forward else {
            return Ok((Grads::new(GradientsParams::new(), closes), closes));
        };
        self.memory.after_forward(closes, step);
        let root = pass.root(loss)?;
        let span = self.ranks.world.timeline().span(Activity::Backward, || "the model".into());
        let grads = root.backward();
        drop(span);
        let beyond = batches.are_over().then(|| batches.beyond.take());
        // What takes part without contributing may be the last of several passes that are measured together.
        if let Some(beyond) = beyond.filter(|beyond| beyond.is_some() || !pass.is_empty_batch()) {
            self.memory.end_pass(beyond, step);
        }
        awaited.check(self.weights.master(), self.weights.replica())?;
        let grads = pass.gradients(grads, &model, closes)?;
        self.adaptation.check()?;
        Ok((grads, closes))
    }

    /// The number of updates made so far.
    pub fn updates(&self) -> u64 {
        self.updater.updates
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
                let replica = self.weights.replica().clone();
                self.stages.evaluator(self.weights.master(), replica)?
            }
        };
        let valid = self.weights.valid(&evaluator);
        self.having_read(Ok(valid))
    }

    /// The parameters that the optimizer updates.
    pub fn master(&self) -> &M {
        self.weights.master()
    }

    /// The replica, as shared among the ranks.
    pub fn replica(&self) -> &M {
        self.weights.replica()
    }

    /// The replica in validation mode.
    pub fn valid_replica(&self) -> M {
        self.weights.valid(self.replica())
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
        let bytes = self.memory.bytes;
        if self.updater.disk.is_some() || on_device && bytes.optimizer > 0 {
            return bytes;
        }
        let optimizer = StateSize::of(&self.updater.optimizer, self.master()).bytes;
        ParameterBytes { optimizer, ..bytes }
    }

    /// This rank's communicator.
    pub fn world(&self) -> &Communicator {
        &self.ranks.world
    }

    /// The rank's share of each global batch.
    pub fn share(&self) -> Share {
        self.ranks.share()
    }

    /// Returns the result of something that reads parameters, or the error of the disk that keeps them if it failed meanwhile.
    ///
    /// # Errors
    ///
    /// The disk has failed, or has returned other bytes than were written, or `result` is an error.
    pub fn having_read<T>(&self, result: Result<T, TrainError>) -> Result<T, TrainError> {
        self.weights.check_disk()?;
        result
    }

    /// Rejects trained weights that are infinite or not a number. Every rank calls it, and the result is shared by all ranks.
    ///
    /// # Errors
    ///
    /// [`TrainError::Weights`], or a lost rank.
    pub fn require_finite(&self) -> Result<(), TrainError> {
        let most = self.updater.moves.unwrap_or(usize::MAX);
        self.weights.require_finite(most, &self.layout, &self.ranks.world)
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

#[cfg(test)]
mod tests {
    use std::fs;

    #[test]
    fn the_documentation_quotes_the_step_which_fits_on_a_screen() {
        let source = fs::read_to_string("src/engine/session/mod.rs").unwrap();
        let start = source.find("    fn run<B: Batch>(").unwrap();
        let end = start + source[start..].find("\n    }\n").unwrap() + "\n    }\n".len();
        let step: Vec<_> = source[start..end].lines().map(|line| line.get(4..).unwrap_or("")).collect();
        assert!(step.len() <= 60, "{} lines", step.len());
        let quoted = fs::read_to_string("docs/architecture.md").unwrap();
        assert!(quoted.contains(&format!("```rust,ignore\n{}\n```", step.join("\n"))), "quote the step anew");
    }
}
