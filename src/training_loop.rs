//! The training loop: rounds of steps, each closed by an evaluation.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use burn::data::dataloader::Progress;
use burn::train::metric::store::EventStoreClient;
use burn::train::{
    EventProcessorError, EventProcessorTraining, Interrupter, LearnerEvent, SupervisedTrainingEventProcessor,
    TrainingComponents, TrainingItem,
};
use firebrick_datasets::{Batch, Cursor, DataError};
use firebrick_strategies::{Pass, Stage};

use crate::dashboard::{Vessel, let_ctrl_c_interrupt};
use crate::feed::{Feed, Window};
use crate::gauges::Readings;
use crate::log::{EvaluationNumbers, Log};
use crate::session::{Session, checked};
use crate::step::{Step, StepNumbers};
use crate::{Data, Objective, TrainError, saving};

/// Skipped updates in a row after which a run is given up.
const MOST_SKIPS: u64 = 100;
/// Windows over which the reported training loss is the mean.
const RECENT: usize = 100;

/// A run that is ready to go.
pub(crate) struct TrainingLoop<M, B: Batch, S> {
    pub session: Session<M, S>,
    pub data: Data<B>,
    pub feed: Feed<B>,
    pub plan: Plan,
    pub log: Log,
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
    /// Where the best model is kept.
    pub best: Option<PathBuf>,
    pub dashboard: bool,
}

/// What the run has been so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub cursor: Cursor,
    pub recent: VecDeque<(f64, usize)>,
    pub last: StepNumbers,
    pub tokens: usize,
    pub step_seconds: Vec<f64>,
    pub skipped: u64,
    skipped_in_a_row: u64,
    pub peak_bytes: usize,
    pub validation: Option<EvaluationNumbers>,
    pub best: Option<EvaluationNumbers>,
    /// Why the run ended before its time.
    pub stopped: Option<String>,
    pub first_step: Option<Instant>,
}

impl<M, B: Batch, S: Stage<M>> TrainingLoop<M, B, S>
where
    M: Objective<B>,
{
    /// Trains to the end of the plan, or until it is interrupted.
    pub fn run(&mut self, components: &mut Components) -> Result<(), TrainError> {
        for round in 1.. {
            components.train(LearnerEvent::StartSplit {
                epoch_number: round,
                total_items: self.plan.round_updates as usize,
            })?;
            self.train_round(components)?;
            components.train(LearnerEvent::EndSplit(round))?;
            if self.interrupted(components) {
                break;
            }
            self.evaluate(round, components)?;
            components.train(LearnerEvent::EndEpoch(round))?;
            if self.interrupted(components) || self.finished() || self.stops_early(round, components)? {
                break;
            }
        }
        Ok(())
    }

    /// Steps until the next evaluation is due.
    fn train_round(&mut self, components: &mut Components) -> Result<(), TrainError> {
        let mut unread = None;
        let mut before = Instant::now();
        let start = self.session.updates();
        loop {
            let Window { epoch, batches, after } = self.feed.window()?;
            let mut step = self.session.step(batches)?;
            step.seconds = before.elapsed().as_secs_f64();
            before = Instant::now();
            self.history.cursor = after;
            // A step's numbers are read when the next is under way, so that the device never waits.
            if let Some((epoch, step)) = unread.replace((epoch, step)) {
                self.record(epoch, step, start, components)?;
            }
            if self.round_ends(epoch) || components.interrupter.should_stop() {
                break;
            }
        }
        match unread {
            Some((epoch, step)) => self.record(epoch, step, start, components),
            None => Ok(()),
        }
    }

    fn round_ends(&self, epoch: u64) -> bool {
        let epoch_ends = self.history.cursor.epoch > epoch;
        self.finished()
            || match self.plan.evaluate_every {
                Some(every) => self.session.updates().is_multiple_of(every),
                None => epoch_ends,
            }
    }

    fn finished(&self) -> bool {
        match self.plan.end_epoch {
            Some(end) => self.history.cursor.epoch >= end,
            None => self.session.updates() >= self.plan.total_updates,
        }
    }

    /// Reads a step's numbers, and tells everybody who wants to know.
    fn record(
        &mut self,
        epoch: u64,
        step: Step,
        start: u64,
        components: &mut Components,
    ) -> Result<(), TrainError> {
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
        components.train(LearnerEvent::ProcessedItem(item))
    }

    /// The mean loss over all items of the validation data, and the best model kept.
    fn evaluate(&mut self, round: usize, components: &mut Components) -> Result<(), TrainError> {
        let Some(valid) = self.data.valid.clone() else {
            return Ok(());
        };
        let started = Instant::now();
        let samples = valid.samples(0);
        components.valid(LearnerEvent::StartSplit { epoch_number: round, total_items: samples })?;
        let model = self.session.evaluator();
        let pass = Pass::evaluate(&self.session.device().clone().inner());
        let (mut sum, mut items) = (0.0, 0);
        for start in (0..samples).step_by(self.data.micro_batch) {
            let end = (start + self.data.micro_batch).min(samples);
            let batch = valid.batch(0, start..end)?;
            let expected = batch.items();
            let loss = model.evaluate(batch, &pass);
            let loss = checked(loss.sum, loss.items, expected)?.try_into_scalar::<f64>()?;
            sum += loss;
            items += expected;
            let readings = Readings::of_evaluation(loss / expected.max(1) as f64, expected);
            let progress = Progress::new(end, samples, Some("samples".into()));
            components.valid(LearnerEvent::ProcessedItem(TrainingItem::new(
                readings,
                progress,
                Some(end),
                None,
            )))?;
            if components.interrupter.should_stop() {
                return Ok(());
            }
        }
        components.valid(LearnerEvent::EndSplit(round))?;
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
        match &self.plan.best {
            Some(path) => saving::save_model(self.session.master(), path),
            None => Ok(()),
        }
    }

    fn interrupted(&mut self, components: &Components) -> bool {
        let stopped = components.interrupter.should_stop();
        if stopped {
            let reason = components.interrupter.get_message();
            self.history.stopped = Some(reason.unwrap_or_else(|| "interrupted".into()));
        }
        stopped
    }

    fn stops_early(&mut self, round: usize, components: &mut Components) -> Result<bool, TrainError> {
        components.flush()?;
        let stops = components.stops_early(round);
        if stops {
            self.history.stopped = Some("the validation loss no longer falls".into());
        }
        Ok(stops)
    }
}

impl History {
    /// Adds a step, and fills in the numbers that need the steps before it.
    fn add(&mut self, numbers: &mut StepNumbers) -> Result<(), TrainError> {
        self.first_step.get_or_insert_with(Instant::now);
        match &numbers.skipped {
            None => self.skipped_in_a_row = 0,
            Some(reason) => {
                self.skipped += 1;
                self.skipped_in_a_row += 1;
                if self.skipped_in_a_row >= MOST_SKIPS {
                    return Err(TrainError::OnlySkips {
                        count: self.skipped_in_a_row,
                        reason: reason.clone(),
                    });
                }
            }
        }
        numbers.skipped_steps = self.skipped;
        numbers.tokens_per_second = numbers.tokens as f64 / numbers.seconds.max(f64::MIN_POSITIVE);
        self.peak_bytes = self.peak_bytes.max(numbers.peak_bytes);
        numbers.peak_bytes = self.peak_bytes;
        self.tokens += numbers.tokens;
        self.step_seconds.push(numbers.seconds);
        if numbers.skipped.is_none() {
            self.recent.push_back((numbers.loss, numbers.items));
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        }
        self.last = numbers.clone();
        Ok(())
    }
}

/// What burn-train lends to the loop: the dashboard behind its events, the interrupter, and early
/// stopping.
pub(crate) struct Components {
    events: SupervisedTrainingEventProcessor<Vessel>,
    pub interrupter: Interrupter,
    lent: Lent,
}

struct Lent {
    store: std::sync::Arc<EventStoreClient>,
    early_stopping: Option<Box<dyn burn::train::CloneEarlyStoppingStrategy>>,
}

impl Components {
    pub fn new(components: TrainingComponents<Vessel>) -> Self {
        Self {
            events: components.event_processor,
            interrupter: components.interrupter,
            lent: Lent { store: components.event_store, early_stopping: components.early_stopping },
        }
    }

    pub fn into_events(self) -> SupervisedTrainingEventProcessor<Vessel> {
        self.events
    }

    fn train(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.events.process_train(event).map_err(failed)
    }

    fn valid(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.events.process_valid(event).map_err(failed)
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        self.events.flush().map_err(failed)
    }

    fn stops_early(&mut self, round: usize) -> bool {
        let Lent { store, early_stopping } = &mut self.lent;
        early_stopping.as_mut().is_some_and(|early| early.should_stop(round, store))
    }
}

fn failed(error: EventProcessorError) -> TrainError {
    TrainError::Dashboard(error.to_string())
}
