//! Saving and restoring a session's state.

use std::sync::Arc;

use burn::module::Module;
use burn::train::Interrupter;
use firebrick_strategies::{SavedStates, StageState};

use super::update::published;
use super::{Session, Weights};
use crate::TrainError;
use crate::checkpoint::{Layout, Resumed, Snapshot, TrainerState, load, load_optimizer};

impl<M: Module> Session<M> {
    /// The names of the master's tensors, and the part of each that this rank saves.
    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The states of the strategies, in order.
    pub fn strategies(&mut self) -> Vec<StageState> {
        self.stages.save()
    }

    /// Copies the part of the state that this rank saves.
    pub(crate) fn snapshot(
        &mut self,
        layout: &Arc<Layout>,
        state: TrainerState,
    ) -> Result<Snapshot, TrainError> {
        debug_assert!(self.undecided.is_none(), "a save begins with what is decided");
        let (master, average) = (self.weights.pair().0, self.stages.averaged());
        Ok(Snapshot::take(layout, &self.world, master, average.as_ref(), &self.optimizer, state)?)
    }

    /// Continues from a checkpoint, which may have any number of ranks and other strategies. Every rank calls it.
    ///
    /// # Errors
    ///
    /// The checkpoint belongs to another model or optimizer, the run was interrupted, or a rank is lost. The session is unusable afterwards.
    pub(crate) fn resume(
        &mut self,
        layout: &Layout,
        from: &Resumed,
        interrupter: &Interrupter,
    ) -> Result<(), TrainError> {
        let (checkpoint, state) = (&from.checkpoint, &from.state);
        let fresh = self.strategies();
        let Some((master, replica)) = self.weights.pair.take() else { return Ok(()) };
        drop(replica);
        let device = self.pass.device().clone();
        let reclaimed = (self.stages.unalias_master(master), checkpoint.parameters());
        let load_master = |(master, saved)| load(master, layout, saved, interrupter);
        let master = device.memory_persistent_allocations(reclaimed, load_master)?;
        let optimizer = (self.optimizer.clone(), checkpoint.optimizer(), master);
        let load_state = |(optimizer, saved, master)| {
            let loaded = load_optimizer(optimizer, &master, layout, saved, interrupter)?;
            Ok::<_, TrainError>((loaded, master))
        };
        let loaded = device.memory_persistent_allocations(optimizer, load_state)?;
        let master;
        ((self.optimizer, self.bytes.optimizer), master) = loaded;
        let pair = published(&device, &mut self.stages, master)?;
        let mut states = SavedStates::matching(fresh, state.strategies().to_vec());
        self.stages.restore(&mut states)?;
        states.finish()?;
        if let Some(average) = self.stages.averaged() {
            let average = match checkpoint.average() {
                Some(saved) => load(average, layout, saved, interrupter)?,
                None => pair.0.clone(),
            };
            self.stages.resume_average(average);
        }
        self.bytes.count(&pair.0, &pair.1, self.stages.averaged().as_ref());
        self.weights = Weights::new(pair);
        self.updates = state.step();
        Ok(())
    }
}
