//! The training loop: rounds of steps, each followed by an evaluation.

mod kept;
pub(crate) mod saves;
mod validation;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

use burn::train::Interrupter;
use firebrick_datasets::{Batch, Cursor};

use crate::checkpoint::best::BestFile;
use tracing::info;

use crate::engine::agreement::Tells;
use crate::engine::dry_run::text_of;
use crate::engine::feed::Feed;
use crate::engine::session::Session;
use crate::engine::step::Step;
use crate::observe::numbers::{Round, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::observers::Observers;
use crate::observe::progress::Progress;
use crate::observe::rank_report::Exchanged;
use crate::observe::timeline::recorder::Recorder;
use crate::observe::utilization::Devices;
use crate::output::Output;
use crate::score::{AddedScores, BestBy};
use crate::{Data, FailedWrites, Objective, TrainError};
use saves::Saves;

/// A run that is ready to start.
pub(crate) struct TrainingLoop<M, B: Batch> {
    pub session: Session<M>,
    pub data: Data<B>,
    pub feed: Feed<B>,
    pub plan: Plan,
    pub observers: Observers,
    pub interrupter: Interrupter,
    /// The scores that the program adds to those of the model.
    pub scores: AddedScores,
    pub output: Option<Arc<Output>>,
    /// How far the run is, as checkpoints store it.
    pub progress: Progress,
    /// What was exchanged with other ranks, over all steps.
    pub exchanged: Exchanged,
    /// Whether any rank has an output folder.
    pub saves: bool,
    /// The file of the best model.
    pub best: BestFile,
    /// Saves checkpoints, if the run saves any.
    pub checkpoints: Option<Saves>,
    /// The devices of all ranks.
    pub devices: Devices,
    /// Records the timelines of steps.
    pub recorder: Recorder,
    /// The first rank that wants to end the run, once all ranks know it.
    pub stops: Option<usize>,
    /// Whether any of several ranks still worked on its part of a save in the last step. True once it has been used:
    /// the next step tells it again.
    pub saving: bool,
    /// Whether this process has made an update.
    pub has_updated: bool,
    /// Whether the run was asked to end.
    pub interrupted: bool,
    /// Why the run ended early.
    pub stopped: Option<String>,
    /// The files with a failed write.
    pub failed_writes: Vec<FailedWrites>,
}

/// How far the run goes and when it evaluates.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub total_updates: u64,
    /// The epoch at whose start the run ends, if its length is given in epochs.
    pub end_epoch: Option<u64>,
    /// Updates between two evaluations; `None` evaluates at the end of each epoch.
    pub evaluate_every: Option<u64>,
    /// Updates in a round, as far as that is known before.
    pub round_updates: u64,
    pub dashboard: bool,
    /// The metric that selects the best evaluation.
    pub best_by: BestBy,
    /// The run ends after this many evaluations without an improvement.
    pub patience: Option<usize>,
}

impl<M, B: Batch> TrainingLoop<M, B>
where
    M: Objective<B> + 'static,
{
    /// Trains to the end of the plan, or until the run is interrupted. After an error, finishes the save in progress if the
    /// ranks still agree with each other. If the run diverges, marks the checkpoint of its weights as unsound.
    pub fn run(&mut self) -> Result<(), TrainError> {
        let ended = catch_unwind(AssertUnwindSafe(|| self.rounds()));
        let result = ended.unwrap_or_else(|panic| {
            self.end_with(&TrainError::Panicked(text_of(&*panic).into()));
            resume_unwind(panic)
        });
        match (&result, &self.checkpoints) {
            (Err(error), _) => self.end_with(error),
            (Ok(()), Some(saves)) if !self.interrupted => saves.prune(),
            (Ok(()), _) => {}
        }
        result
    }

    /// Keeps the results up to an error.
    fn end_with(&mut self, error: &TrainError) {
        let world = self.session.world();
        let agree = world.size() == 1 || error.is_agreed();
        if !agree {
            // The others end too, rather than wait until this rank has written its files.
            world.fail(&error.to_string());
        }
        self.best.finish();
        self.observers.flush();
        // A panic may have left the session in the middle of a step.
        if !matches!(error, TrainError::Panicked(_)) {
            // After another error, this one says nothing more.
            let _ = self.session.confirm();
        }
        let (updates, is_sound) = (self.session.updates(), self.progress.is_sound());
        let Some(saves) = &mut self.checkpoints else { return };
        match error {
            // The validation loss was never finite, which does not speak against the weights.
            TrainError::NotFinite { .. } if is_sound => saves.end(agree, &mut self.observers),
            error if error.is_divergence() => saves.disown(updates),
            _ => saves.end(agree, &mut self.observers),
        }
    }

    /// The number of the first round, and the number of steps already made in it, those without an update included.
    pub fn begun(&self) -> (usize, u64) {
        let progress = &self.progress;
        (progress.rounds.saturating_add(1), progress.round_steps)
    }

    fn rounds(&mut self) -> Result<(), TrainError> {
        let mut ends = self.ends();
        let mut complete = ends;
        while !ends {
            let progress = &self.progress;
            let number = progress.rounds.saturating_add(1);
            let round = Round { number, start: progress.round_start, updates: self.plan.round_updates };
            self.observers.round_started(&round);
            // A run that was saved between training and evaluation continues with the evaluation.
            if !self.progress.evaluation_due {
                self.train_round()?;
            }
            self.observers.round_trained();
            if self.is_interrupted() || !self.evaluate()? {
                break;
            }
            self.progress.evaluation_due = false;
            self.progress.rounds = number;
            self.progress.round_start = self.session.updates();
            self.progress.round_steps = 0;
            self.save_if_due()?;
            let interrupted = self.is_interrupted();
            complete = !interrupted && self.ends();
            ends = interrupted || complete;
        }
        let finite = match complete {
            true => self
                .progress
                .require_finite(&self.observers.tally.last)
                .and_then(|()| self.session.require_finite()),
            false => Ok(()),
        };
        // Save a rejected model as a checkpoint too, so that you can inspect it or continue from it.
        self.save_at_end(finite.is_err())?;
        finite
    }

    /// Whether the run ends between two rounds.
    fn ends(&mut self) -> bool {
        let progress = &self.progress;
        if progress.evaluation_due {
            return false;
        }
        let is_late = self.plan.patience.is_some_and(|most| progress.evaluations_since_best >= most);
        if is_late {
            let by = &self.plan.best_by;
            let last = progress.validation.as_ref();
            let last = last.map_or(f64::NAN, |last| by.value(last.loss, &last.scores));
            self.stopped = Some(match by {
                BestBy::Score { name, .. } if !last.is_finite() => format!("{name} is not a number"),
                BestBy::Loss => "the validation loss no longer falls".into(),
                BestBy::Score { name, .. } => format!("{name} no longer gets better"),
            });
        }
        is_late || self.finished()
    }

    /// Trains until the next evaluation is due.
    fn train_round(&mut self) -> Result<(), TrainError> {
        let mut unread = None;
        let mut before = Instant::now();
        let (start, begun) = (self.progress.round_start, self.session.updates());
        loop {
            let batch = self.feed.next_batch()?;
            let (epoch, after) = (batch.epoch, batch.after);
            let (stops, saving) = (self.interrupter.should_stop(), self.is_saving());
            let tells = Tells { stops, saving, may_end: self.may_end_at(after) };
            self.recorder.begin(self.session.updates() + 1, self.session.world());
            let mut step = self.session.step(batch, &mut self.feed, tells)?;
            if let Some(of_all) = &step.of_all {
                (self.stops, self.saving) = (of_all.stops, of_all.saving);
            }
            step.seconds = before.elapsed().as_secs_f64();
            if let Some(timeline) = self.recorder.end(self.session.world())? {
                self.observers.timeline(&timeline);
            }
            before = Instant::now();
            self.progress.cursor = after;
            if !self.has_updated && self.session.updates() > begun {
                self.has_updated = true;
                self.settle()?;
            }
            // Read a step's numbers while the next step runs, so that the device never waits.
            if let Some((epoch, step)) = unread.replace((epoch, step)) {
                self.record(epoch, step)?;
            }
            // Read the first step's numbers at once: its end marks the start of the run.
            let is_first = self.observers.tally.is_first_step();
            if let Some((epoch, step)) = unread.take_if(|_| is_first) {
                self.record(epoch, step)?;
            }
            if self.round_ends(epoch, start) || self.should_stop() {
                self.session.confirm_between()?;
                self.progress.evaluation_due = self.round_ends(epoch, start);
                if self.progress.evaluation_due || self.should_stop() {
                    break;
                }
            }
            if self.wants_save()? {
                self.session.confirm_between()?;
                // A checkpoint includes the numbers of all its steps.
                if let Some((epoch, step)) = unread.take() {
                    self.record(epoch, step)?;
                }
                self.save_if_due()?;
            }
        }
        match unread {
            Some((epoch, step)) => self.record(epoch, step),
            None => Ok(()),
        }
    }

    /// Replaces an earlier run in the output folder, after the first update.
    fn settle(&mut self) -> Result<(), TrainError> {
        // Write nothing into the folder while it is renamed.
        self.best.wait();
        let kept = self.output.as_ref().map(|output| output.settle()).transpose()?.flatten();
        if let (Some(kept), false) = (kept, self.plan.dashboard) {
            info!("kept the earlier run as {}", kept.display());
        }
        // No rank writes its part of a checkpoint before the first rank has settled in the folder.
        if let Some(output) = &self.output {
            self.best.settle(output.folder())?;
            output.write_descriptions()?;
        }
        let world = self.session.world();
        if self.checkpoints.is_some() && world.size() > 1 {
            world.numbers("the output folder of the run", &[0.0])?;
        }
        Ok(())
    }

    /// Whether an evaluation is due. With `evaluate_every`, a skipped step never makes one due, since it changes
    /// nothing.
    fn round_ends(&self, epoch: u64, start: u64) -> bool {
        let updates = self.session.updates();
        self.finished()
            || match self.plan.evaluate_every {
                Some(every) => updates > start && updates.is_multiple_of(every),
                None => self.progress.cursor.epoch > epoch,
            }
    }

    /// Whether the run is over once an update has been made from the global batch before this position of the data.
    fn may_end_at(&self, after: Cursor) -> bool {
        match self.plan.end_epoch {
            Some(end) => after.epoch >= end,
            None => self.session.updates() + 1 >= self.plan.total_updates,
        }
    }

    fn finished(&self) -> bool {
        match self.plan.end_epoch {
            Some(end) => self.progress.cursor.epoch >= end,
            None => self.session.updates() >= self.plan.total_updates,
        }
    }

    /// Reads a step's numbers and reports them to the observers.
    fn record(&mut self, epoch: u64, step: Step) -> Result<(), TrainError> {
        self.exchanged.add(&step.exchanged);
        let (numbers, infinite) = step.read()?;
        self.progress.add(&numbers, infinite)?;
        let (skipped_steps, peak_bytes) = (self.progress.skipped, self.observers.tally.peak_bytes);
        let peak_bytes = peak_bytes.max(numbers.peak_bytes);
        let numbers = self.devices.of_step(numbers);
        self.observers.step(&StepNumbers { epoch, skipped_steps, peak_bytes, ..numbers });
        Ok(())
    }

    /// Whether to end the run at this step. Several ranks use the decision that they agreed on when the step began.
    fn should_stop(&self) -> bool {
        match self.session.world().size() {
            1 => self.interrupter.should_stop(),
            _ => self.stops.is_some(),
        }
    }

    fn is_interrupted(&mut self) -> bool {
        let stopped = self.should_stop();
        if stopped {
            self.interrupted = true;
            let own = self.interrupter.should_stop().then(|| self.interrupter.get_message());
            self.stopped = Some(match (own, self.stops) {
                (None, Some(rank)) => format!("rank {rank} was interrupted"),
                (own, _) => own.flatten().unwrap_or_else(|| "interrupted".into()),
            });
        }
        stopped
    }
}
