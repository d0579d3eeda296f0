//! The training loop's side of saving: what is saved of a run at a boundary, and who hears of it.

use burn::module::Module;
use firebrick_strategies::Stage;

use super::saver::{Ended, Saver};
use super::trainer_state::{Settings, TrainerState};
use crate::TrainError;
use crate::console::tell;
use crate::log::{Log, SaveNumbers};
use crate::progress::Progress;
use crate::score::BestBy;
use crate::session::Session;

/// Saves a run at its boundaries.
pub(crate) struct Saves {
    pub saver: Saver,
    pub settings: Settings,
    /// The number by which the best checkpoints are told.
    pub best_by: BestBy,
    /// The run file.
    pub run: Option<String>,
    /// Whether failures are told on standard error.
    pub tells: bool,
}

impl Saves {
    /// At a step boundary: a save that is under way goes on. Whether another is to begin. With `holds` no checkpoint
    /// is published, since a file that it tells of is still being written.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn wants(&mut self, updates: u64, holds: bool, log: &mut Log) -> Result<bool, TrainError> {
        self.saver.poll(holds)?;
        self.report(log);
        Ok(self.saver.is_due(updates))
    }

    /// Whether the run is to be saved where it ends, or was interrupted.
    pub fn wants_at_end(&self, updates: u64, progress: &Progress, interrupted: bool) -> bool {
        self.saver.is_due_at_end(updates, progress.cursor, interrupted)
    }

    /// Whether a save is under way.
    pub fn is_under_way(&self) -> bool {
        self.saver.is_under_way()
    }

    /// Begins a save of the session as it is.
    ///
    /// # Errors
    ///
    /// It cannot be copied, or another rank is gone.
    pub fn begin<M: Module, S: Stage<M>>(
        &mut self,
        session: &Session<M, S>,
        progress: &Progress,
        log: &mut Log,
    ) -> Result<(), TrainError> {
        log.flush();
        let updates = session.updates();
        let metric = progress.validation.as_ref();
        let metric = metric.map(|numbers| self.best_by.value(numbers.loss, &numbers.scores));
        let state = TrainerState::new(
            updates,
            self.settings.clone(),
            progress.clone(),
            session.strategies(),
            log.mark(updates),
            self.run.clone(),
        );
        let sound = progress.is_sound();
        let snapshot = |layout: &_| session.snapshot(layout, state);
        self.saver.begin(updates, progress.cursor, metric, sound, snapshot)?;
        self.report(log);
        Ok(())
    }

    /// Waits for the save that is under way. Whether it failed and is to be tried again.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn finish(&mut self, log: &mut Log) -> Result<bool, TrainError> {
        self.saver.finish()?;
        self.report(log);
        Ok(self.saver.tries_again())
    }

    /// The run has come to a good end: removes what need not be kept.
    pub fn prune(&self) {
        self.saver.prune();
    }

    /// The run has diverged: what is under way is finished, and the checkpoint of the weights as they are is marked, so
    /// that the next start goes on from an older one. The error of the run is another: a failure is told only.
    pub fn disown(&mut self, updates: u64) {
        let disowned = match self.saver.finish() {
            Ok(()) => self.saver.disown(updates).map_err(TrainError::from),
            Err(error) => Err(error),
        };
        match disowned {
            Ok(true) if self.tells => {
                tell(&format!("the checkpoint of step {updates} is not sound: `--resume` passes it over"));
            }
            Err(error) if self.tells => {
                tell(&format!("the checkpoint of step {updates} could not be marked as not sound: {error}"));
            }
            _ => {}
        }
    }

    /// The updates at the newest checkpoint of this process, and why the last save failed, if it did.
    pub fn outcome(&self) -> (Option<u64>, Option<String>) {
        (self.saver.newest, self.saver.failed.clone())
    }

    fn report(&mut self, log: &mut Log) {
        for Ended { step, seconds, pause, error } in self.saver.done.drain(..) {
            if let (Some(error), true) = (&error, self.tells) {
                tell(&format!("the checkpoint of step {step} could not be saved, training goes on: {error}"));
            }
            log.save(&SaveNumbers { step, seconds, pause_seconds: pause, error });
        }
    }
}
