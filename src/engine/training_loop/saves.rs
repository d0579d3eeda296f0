//! The training loop's side of saving: what a checkpoint contains at a step boundary, and reports of its outcome.

use burn::module::Module;

use tracing::warn;

use crate::checkpoint::{Ended, Saver, Settings};
use crate::engine::session::Session;
use crate::observe::numbers::SaveNumbers;
use crate::observe::observer::Observer;
use crate::observe::observers::Observers;
use crate::observe::progress::Progress;
use crate::score::BestBy;
use crate::{TrainError, TrainerState};

const GOES_ON: &str = ", training continues";

/// Saves a run at its step boundaries.
pub(crate) struct Saves {
    pub saver: Saver,
    pub settings: Settings,
    /// The metric that ranks the checkpoints.
    pub best_by: BestBy,
    /// The run file.
    pub run: Option<String>,
    /// Whether to report failures on standard error.
    pub tells: bool,
}

impl Saves {
    /// Whether this rank still works on its part of the save in progress. With `holds`, no checkpoint is published, because
    /// a file that it refers to is still being written.
    pub fn is_busy(&self, holds: bool) -> bool {
        self.saver.is_busy(holds)
    }

    /// Called at a step boundary: advances a save in progress, unless any rank was [busy](Self::is_busy) with it in the
    /// step, and returns whether a new save should begin.
    ///
    /// # Errors
    ///
    /// A rank is lost.
    pub fn wants(
        &mut self,
        updates: u64,
        any_busy: bool,
        observers: &mut Observers,
    ) -> Result<bool, TrainError> {
        self.saver.poll(any_busy)?;
        self.report(observers, GOES_ON);
        Ok(self.saver.is_due(updates))
    }

    /// Whether to save the run at its end or interruption.
    pub fn wants_at_end(&self, updates: u64, progress: &Progress, interrupted: bool) -> bool {
        self.saver.is_due_at_end(updates, progress.cursor, interrupted)
    }

    /// Whether a save is in progress.
    pub fn is_under_way(&self) -> bool {
        self.saver.is_under_way()
    }

    /// Begins a save of the session in its current state.
    ///
    /// # Errors
    ///
    /// The state cannot be copied, or a rank is lost.
    pub fn begin<M: Module>(
        &mut self,
        session: &mut Session<M>,
        progress: &Progress,
        observers: &mut Observers,
    ) -> Result<(), TrainError> {
        observers.flush();
        let updates = session.updates();
        // An evaluation of earlier weights says nothing about these.
        let metric = progress.validation.as_ref().filter(|numbers| numbers.step == updates);
        let metric = metric.map(|numbers| self.best_by.value(numbers.loss, &numbers.scores));
        let state = TrainerState::new(
            updates,
            self.settings.clone(),
            progress.clone(),
            session.strategies(),
            observers.log.mark(updates),
            self.run.clone(),
        );
        let sound = progress.is_sound();
        let snapshot = |layout: &_| session.snapshot(layout, state);
        self.saver.begin(updates, progress.cursor, metric, sound, snapshot)?;
        self.report(observers, GOES_ON);
        Ok(())
    }

    /// Waits for the save in progress. Returns whether it failed and is to be retried.
    ///
    /// # Errors
    ///
    /// A rank is lost.
    pub fn finish(&mut self, observers: &mut Observers) -> Result<bool, TrainError> {
        self.saver.finish()?;
        self.report(observers, GOES_ON);
        Ok(self.saver.tries_again())
    }

    /// Ends the save in progress after an error of the run. What it saves is older than the error, and nothing changes it
    /// any more: if the ranks `agree` on the error, they finish the save, otherwise they give it up. A failure is only
    /// reported, since the run already ends with its own error.
    pub fn end(&mut self, agree: bool, observers: &mut Observers) {
        if agree {
            let _ = self.saver.finish();
        }
        self.saver.abandon();
        self.report(observers, "");
        observers.flush();
    }

    /// Removes checkpoints that the policy does not keep, after a successful run.
    pub fn prune(&self) {
        self.saver.prune();
    }

    /// Finishes the save in progress after the run has diverged, and marks the checkpoint of the current weights as
    /// unsound, so that the next start continues from an older one. A failure here is only reported, since the run
    /// already ends with its own error.
    pub fn disown(&mut self, updates: u64) {
        let disowned = match self.saver.finish() {
            Ok(()) => self.saver.disown(updates).map_err(TrainError::from),
            Err(error) => Err(error),
        };
        match disowned {
            Ok(true) if self.tells => {
                warn!("the checkpoint of step {updates} is not sound: `--resume` passes it over");
            }
            Err(error) if self.tells => {
                warn!("the checkpoint of step {updates} could not be marked as not sound: {error}");
            }
            _ => {}
        }
    }

    /// Reports the saves that have ended. `then` says what comes after one that failed.
    fn report(&mut self, observers: &mut Observers, then: &str) {
        for Ended { step, seconds, pause, error } in self.saver.done.drain(..) {
            if let (Some(error), true) = (&error, self.tells) {
                warn!("the checkpoint of step {step} could not be saved{then}: {error}");
            }
            observers.saved(&SaveNumbers { step, seconds, pause_seconds: pause, error });
        }
    }
}
