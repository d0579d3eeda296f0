//! What the training loop saves of a run: the best model and checkpoints.

use firebrick_datasets::Batch;

use super::TrainingLoop;
use super::saves::Saves;
use crate::checkpoint::best;
use crate::checkpoint::best::BEST;
use crate::observe::observer::Observer;
use crate::{Objective, TrainError};

impl<M, B: Batch> TrainingLoop<M, B>
where
    M: Objective<B> + 'static,
{
    /// Hands the model to a thread that writes it. Every rank calls it.
    pub(super) fn keep_best(&mut self) -> Result<(), TrainError> {
        if !self.saves {
            return Ok(());
        }
        if !self.best.poll() {
            self.forget_others();
        }
        if let (Some(model), Some(output)) = (self.session.on_host()?, &self.output) {
            let (output, adaptation) = (output.clone(), self.session.adaptation().clone());
            let step = self.session.updates();
            self.best.put(step, move || {
                let path = output.save_model(BEST, &adaptation.give_back(model.clone()))?;
                best::remember(&output.current(), step)?;
                Ok(path)
            });
        }
        Ok(())
    }

    /// Removes the best weights that neither the run nor a checkpoint refers to, unless a save is in progress, since
    /// that save may refer to some.
    fn forget_others(&self) {
        let is_saving = self.checkpoints.as_ref().is_some_and(Saves::is_under_way);
        if let (Some(output), false) = (&self.output, is_saving) {
            best::forget_others(output.folder(), self.progress.best.as_ref().map(|best| best.step));
        }
    }

    /// Advances the saves that are in progress, and returns whether a new save should begin now.
    pub(super) fn wants_save(&mut self) -> Result<bool, TrainError> {
        let is_alone = self.session.world().size() == 1;
        let any_busy = if is_alone { self.is_saving() } else { std::mem::replace(&mut self.saving, true) };
        match &mut self.checkpoints {
            None => Ok(false),
            Some(saves) => saves.wants(self.session.updates(), any_busy, &mut self.observers),
        }
    }

    /// Whether this rank still works on its part of the save in progress.
    pub(super) fn is_saving(&mut self) -> bool {
        let holds = self.best.poll();
        self.checkpoints.as_ref().is_some_and(|saves| saves.is_busy(holds))
    }

    pub(super) fn save_if_due(&mut self) -> Result<(), TrainError> {
        if self.wants_save()? { self.save() } else { Ok(()) }
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let Some(saves) = &mut self.checkpoints else { return Ok(()) };
        if saves.is_under_way() {
            // The save refers to the best model, so wait for its file.
            self.best.wait();
        }
        saves.begin(&mut self.session, &self.progress, &mut self.observers)
    }

    /// Writes the last files and waits for all of them.
    pub(super) fn save_at_end(&mut self, is_refused: bool) -> Result<(), TrainError> {
        if let Some(output) = self.output.as_ref().filter(|output| !output.is_settled()) {
            return Err(TrainError::NoUpdate { folder: output.folder().into() });
        }
        self.best.finish();
        let result = self.last_checkpoint(is_refused);
        self.forget_others();
        self.observers.flush();
        self.failed_writes = self.best.failed().into_iter().chain(self.observers.failed_writes()).collect();
        result
    }

    fn last_checkpoint(&mut self, is_refused: bool) -> Result<(), TrainError> {
        let Some(saves) = &self.checkpoints else { return Ok(()) };
        let updates = self.session.updates();
        let wanted = self.interrupted || is_refused;
        let mut again = saves.wants_at_end(updates, &self.progress, wanted);
        loop {
            if again {
                self.save()?;
            }
            let Some(saves) = &mut self.checkpoints else { return Ok(()) };
            again = saves.finish(&mut self.observers)?;
            if !again {
                return Ok(());
            }
        }
    }
}
