//! The training loop: rounds of steps, each closed by an evaluation.

use std::sync::Arc;
use std::time::Instant;

use burn::data::dataloader::Progress;
use burn::train::{LearnerEvent, TrainingItem};
use firebrick_datasets::{Batch, DataError};
use firebrick_strategies::{Pass, Stage};

use crate::dashboard::let_ctrl_c_interrupt;
use crate::events::Events;
use crate::feed::{self, Feed};
use crate::gauges::Readings;
use crate::history::History;
use crate::log::{EvaluationNumbers, Log};
use crate::output::Output;
use crate::session::{Session, checked};
use crate::step::{Step, StepNumbers};
use crate::{Data, Objective, TrainError};

/// A run that is ready to go.
pub(crate) struct TrainingLoop<M, B: Batch, S> {
    pub session: Session<M, S>,
    pub data: Data<B>,
    pub feed: Feed<B>,
    pub plan: Plan,
    pub log: Log,
    pub output: Option<Arc<Output>>,
    pub history: History,
    /// Called with each step's numbers.
    pub watch: Box<dyn FnMut(&StepNumbers) + Send>,
}

/// How far the run goes, and where it stops to evaluate.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub total_updates: u64,
    /// The epoch at whose start the run ends, where its length is given in epochs.
    pub end_epoch: Option<u64>,
    /// Updates between two evaluations; `None`: at the end of each epoch.
    pub evaluate_every: Option<u64>,
    /// Rounds that the dashboard counts.
    pub rounds: usize,
    /// Updates of a round that the dashboard counts.
    pub round_updates: u64,
    pub dashboard: bool,
}

impl<M, B: Batch, S: Stage<M>> TrainingLoop<M, B, S>
where
    M: Objective<B>,
{
    /// Trains to the end of the plan, or until it is interrupted.
    pub fn run(&mut self, events: &mut Events) -> Result<(), TrainError> {
        for round in 1.. {
            events.train(LearnerEvent::StartSplit {
                epoch_number: round,
                total_items: self.plan.round_updates as usize,
            })?;
            self.train_round(events)?;
            events.train(LearnerEvent::EndSplit(round))?;
            if self.interrupted(events) {
                break;
            }
            self.evaluate(round, events)?;
            events.train(LearnerEvent::EndEpoch(round))?;
            if self.interrupted(events) || self.finished() || self.stops_early(round, events)? {
                break;
            }
        }
        Ok(())
    }

    /// Steps until the next evaluation is due.
    fn train_round(&mut self, events: &mut Events) -> Result<(), TrainError> {
        let mut unread = None;
        let mut before = Instant::now();
        let start = self.session.updates();
        loop {
            let window = self.feed.window()?;
            let (epoch, after) = (window.epoch, window.after);
            let mut step = self.session.step(window)?;
            step.seconds = before.elapsed().as_secs_f64();
            before = Instant::now();
            self.history.cursor = after;
            // A step's numbers are read when the next is under way, so that the device never waits.
            if let Some((epoch, step)) = unread.replace((epoch, step)) {
                self.record(epoch, step, start, events)?;
            }
            if self.round_ends(epoch, start) || events.interrupter.should_stop() {
                break;
            }
        }
        match unread {
            Some((epoch, step)) => self.record(epoch, step, start, events),
            None => Ok(()),
        }
    }

    /// Whether an evaluation is due. A skipped step makes none: it has changed nothing.
    fn round_ends(&self, epoch: u64, start: u64) -> bool {
        let updates = self.session.updates();
        self.finished()
            || match self.plan.evaluate_every {
                Some(every) => updates > start && updates.is_multiple_of(every),
                None => self.history.cursor.epoch > epoch,
            }
    }

    fn finished(&self) -> bool {
        match self.plan.end_epoch {
            Some(end) => self.history.cursor.epoch >= end,
            None => self.session.updates() >= self.plan.total_updates,
        }
    }

    /// Reads a step's numbers, and tells everybody who wants to know.
    fn record(&mut self, epoch: u64, step: Step, start: u64, events: &mut Events) -> Result<(), TrainError> {
        let mut numbers = StepNumbers { epoch, ..step.read()? };
        self.history.add(&mut numbers)?;
        self.log.step(&numbers)?;
        (self.watch)(&numbers);
        if self.plan.dashboard {
            let_ctrl_c_interrupt();
        }
        let done = (numbers.step - start) as usize;
        let progress = Progress::new(done, self.plan.round_updates as usize, Some("steps".into()));
        let rate = Some(numbers.learning_rate.into());
        let readings = Readings::of_step(&numbers);
        let item = TrainingItem::new(readings, progress, Some(numbers.step as usize), rate);
        events.train(LearnerEvent::ProcessedItem(item))
    }

    /// The mean loss over all items of the validation data, and the best model kept.
    fn evaluate(&mut self, round: usize, events: &mut Events) -> Result<(), TrainError> {
        let Some(valid) = self.data.valid.clone() else {
            return Ok(());
        };
        let started = Instant::now();
        let samples = valid.samples(0);
        events.valid(LearnerEvent::StartSplit { epoch_number: round, total_items: samples })?;
        let model = self.session.evaluator();
        let device = self.session.device().clone().inner();
        let pass = Pass::evaluate(&device).computing_in(self.session.evaluation_dtype());
        let (mut sum, mut items) = (0.0, 0);
        let cut = feed::cut(&self.data, 1)?;
        let mut end = 0;
        while end < samples {
            let positions = cut.global_batch(&valid, 0, end, samples)?;
            end = positions.end;
            let batch = valid.batch(0, positions)?;
            let expected = batch.items();
            if expected == 0 {
                continue;
            }
            let loss = model.evaluate(batch, &pass);
            let loss = checked(loss.sum, loss.items, expected)?.try_into_scalar::<f64>()?;
            sum += loss;
            items += expected;
            let readings = Readings::of_evaluation(loss / expected as f64, expected);
            let progress = Progress::new(end, samples, Some("samples".into()));
            events.valid(LearnerEvent::ProcessedItem(TrainingItem::new(
                readings,
                progress,
                Some(end),
                None,
            )))?;
            if events.interrupter.should_stop() {
                return Ok(());
            }
        }
        events.valid(LearnerEvent::EndSplit(round))?;
        drop(model);
        if items == 0 {
            return Err(DataError::EmptyEpoch { epoch: 0 }.into());
        }
        let numbers = EvaluationNumbers {
            step: self.session.updates(),
            loss: sum / items as f64,
            items,
            seconds: started.elapsed().as_secs_f64(),
        };
        self.log.evaluation(&numbers)?;
        self.keep_best(numbers)
    }

    fn keep_best(&mut self, numbers: EvaluationNumbers) -> Result<(), TrainError> {
        self.history.validation = Some(numbers);
        if self.history.best.is_some_and(|best| best.loss <= numbers.loss) || !numbers.loss.is_finite() {
            return Ok(());
        }
        self.history.best = Some(numbers);
        if let Some(output) = &self.output {
            self.history.best_path = Some(output.save_model("best.safetensors", self.session.master())?);
        }
        Ok(())
    }

    fn interrupted(&mut self, events: &Events) -> bool {
        let stopped = events.interrupter.should_stop();
        if stopped {
            let reason = events.interrupter.get_message();
            self.history.stopped = Some(reason.unwrap_or_else(|| "interrupted".into()));
        }
        stopped
    }

    fn stops_early(&mut self, round: usize, events: &mut Events) -> Result<bool, TrainError> {
        let stops = events.stops_early(round)?;
        if stops {
            self.history.stopped = Some("the validation loss no longer falls".into());
        }
        Ok(stops)
    }
}
