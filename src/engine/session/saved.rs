//! Saving and restoring a session's state.

use std::sync::Arc;

use burn::module::Module;
use burn::train::Interrupter;
use firebrick_strategies::{SavedStates, StageState};
use firebrick_world::is_host;

use super::Session;
use super::publish::{published, published_to_disk};
use super::weights::Weights;
use super::whole::Which;
use crate::TrainError;
use crate::checkpoint::{
    Layout, Resumed, Snapshot, StateAt, TrainerState, Waiting, load, load_onto_disk, load_optimizer,
};
use crate::scratch::Values;

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
        debug_assert!(self.updater.undecided.is_none(), "a save begins with what is decided");
        let copied = self.copied(Which::Master);
        let average = self.copied(Which::Average).or_else(|| self.stages.averaged());
        let master = self.weights.master();
        let on_device = !master.devices().iter().all(is_host);
        // The optimizers of Burn are read tensor by tensor.
        let read = on_device.then(|| self.updater.optimizer.on_host());
        let optimizer = match (&self.updater.disk, &read) {
            (Some(disk), _) => StateAt::Disk(disk),
            (None, Some(read)) => StateAt::Device(read),
            (None, None) => StateAt::Host(&self.updater.optimizer),
        };
        let master = copied.as_ref().unwrap_or(master);
        Ok(Snapshot::take(layout, &self.ranks.world, master, average.as_ref(), &optimizer, state)?)
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
        let Some(master) = self.weights.take_master() else { return Ok(()) };
        let device = self.pass.device().clone();
        let offloaded = self.weights.offloaded().cloned();
        let master = self.stages.unalias_master(master);
        let master = match &offloaded {
            None => master,
            Some(offloaded) => offloaded.outline(master, Values::Master, true),
        };
        let written = offloaded.as_deref().map_or(Waiting::Nothing, Waiting::Written);
        let load_master = |(master, saved)| load(master, layout, saved, interrupter, written);
        let reclaimed = (master, checkpoint.parameters());
        let master = device.memory_persistent_allocations(reclaimed, load_master)?;
        let saved = checkpoint.optimizer();
        let master = match &mut self.updater.disk {
            Some(disk) => {
                load_onto_disk(&mut self.updater.optimizer, disk, &master, layout, saved, interrupter)?;
                self.memory.bytes.count_disk(disk.bytes(), disk.file());
                master
            }
            None => {
                let load_state = |(optimizer, master)| {
                    let loaded = load_optimizer(optimizer, &master, layout, saved, interrupter)?;
                    Ok::<_, TrainError>((loaded, master))
                };
                let optimizer = (self.updater.optimizer.clone(), master);
                let loaded = device.memory_persistent_allocations(optimizer, load_state)?;
                let master;
                ((self.updater.optimizer, self.memory.bytes.optimizer), master) = loaded;
                master
            }
        };
        let pair = match &offloaded {
            None => published(&self.pass, &mut self.stages, master)?,
            Some(offloaded) => {
                let master = offloaded.renewed(master, Values::Master, |_| true);
                self.stages.updated(&master);
                published_to_disk(&mut self.stages, offloaded, master, self.updater.moves)?
            }
        };
        self.weights = Weights::new(pair, offloaded.clone());
        let mut states = SavedStates::matching(fresh, state.strategies().to_vec());
        self.stages.restore(&mut states)?;
        states.finish()?;
        if let Some(average) = self.stages.averaged() {
            let average = match checkpoint.average() {
                Some(saved) => {
                    let left = offloaded.as_deref().map_or(Waiting::Nothing, Waiting::Left);
                    load(average, layout, saved, interrupter, left)?
                }
                None => self.weights.master().clone(),
            };
            self.stages.resume_average(average);
        }
        let averaged = self.stages.averaged();
        self.memory.bytes.count(self.weights.master(), self.weights.replica(), averaged.as_ref());
        self.weights.renew();
        self.weights.check_disk()?;
        self.updater.updates = state.step();
        Ok(())
    }
}
