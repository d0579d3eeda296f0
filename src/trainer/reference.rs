//! Asks the reference model of a run's loss, before the first update.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Device;
use firebrick_datasets::{Batch, Batches, Reference, counted};
use firebrick_strategies::Adaptation;
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_world::Communicator;
use tracing::info;

use super::Trainer;
use super::start::{Start, run_of};
use crate::engine::reference::{Answers, Asked, ask};
use crate::engine::session::{PreparedRun, Session};
use crate::memory::reset_peak;
use crate::{Data, LrSchedule, Objective, TrainError};

/// The model without adapters, with what a session of it takes.
pub(super) struct ModelWithoutAdapters<M> {
    model: M,
    device: Option<Device>,
    optimizer: ModelOptimizer,
}

/// Returns the reference model that the loss of this data asks, if it asks one.
pub(super) fn reference_of<B: Batch>(data: &Data<B>) -> Result<Option<Reference>, TrainError> {
    if data.train.samples(0) == 0 {
        return Ok(None);
    }
    Ok(data.train.batch(0, 0..1)?.compared().map(|compared| compared.with))
}

impl<M: 'static> Trainer<M> {
    /// Keeps the model without adapters, if it is the reference and training starts from adapters. New adapters change
    /// nothing.
    pub(super) fn unadapted(
        &self,
        reference: Option<Reference>,
        (model, device): (&M, &Option<Device>),
        optimizer: &ModelOptimizer,
    ) -> Option<ModelWithoutAdapters<M>>
    where
        M: Module,
    {
        let is_needed = reference == Some(Reference::AdapterOff) && self.start.is_some();
        let (device, optimizer) = (device.clone(), optimizer.clone());
        is_needed.then(|| ModelWithoutAdapters { model: model.clone(), device, optimizer })
    }

    /// Asks the reference model about all samples that no earlier part of the run has asked about. Call it before the
    /// session resumes: its model is the one that training starts from. Every rank calls it.
    ///
    /// # Errors
    ///
    /// There are no adapters to turn off; the run was interrupted; and those of reading the data and the earlier answers.
    #[allow(
        clippy::too_many_arguments,
        reason = "what a session is created from, and what it is asked about"
    )]
    pub(super) fn ask<B>(
        &self,
        reference: Reference,
        session: &Session<M>,
        unadapted: Option<ModelWithoutAdapters<M>>,
        schedule: &Arc<dyn LrSchedule>,
        start: &Start,
        data: &Data<B>,
        (per_step, updates): (usize, u64),
    ) -> Result<Answers, TrainError>
    where
        M: Objective<B>,
        B: Batch,
    {
        if reference == Reference::AdapterOff && !session.is_adapted() {
            return Err(TrainError::NoAdapter);
        }
        let world = session.world();
        let known = start.earlier_answers(world)?;
        let (cursor, done) = match &start.from {
            Some(from) => (from.state.progress.cursor, from.state.step()),
            None => Default::default(),
        };
        let asked = Asked { data, per_step, cursor, steps: updates.saturating_sub(done) };
        let (tells, before) = (self.tells(world), known.len());
        let mut last = Instant::now();
        let mut told = false;
        let mut say = |answers: usize| {
            if tells && (!told || last.elapsed() > Duration::from_secs(5)) {
                info!("asking the reference model: {} so far", counted(answers - before, "sample"));
                (last, told) = (Instant::now(), true);
            }
        };
        let answers = match unadapted {
            None => session.having_read(ask(session, asked, known, &self.interrupter.0, &mut say))?,
            Some(ModelWithoutAdapters { model, device, optimizer }) => {
                let adaptation = Adaptation::seeded(self.settings.seed).with_fresh(self.fresh.clone());
                let adaptation = adaptation.with_tensor_plan(model.tensor_plan());
                let prepared =
                    PreparedRun::new(&self.strategies, model, device, &optimizer, world.clone(), adaptation)?;
                let session = prepared.opening_disk().start(
                    optimizer,
                    schedule.clone(),
                    self.settings.seed,
                    updates,
                )?;
                session.having_read(ask(&session, asked, known, &self.interrupter.0, &mut say))?
            }
        };
        // The memory of these passes is not part of the run's peak.
        reset_peak();
        Ok(answers)
    }
}

impl Start {
    /// Returns the answers that the run had before its checkpoint, which the first rank reads.
    fn earlier_answers(&self, world: &Communicator) -> Result<Answers, TrainError> {
        let Some(run) = self.from.as_ref().and_then(|from| run_of(from)) else {
            return Ok(Answers::default());
        };
        if world.size() == 1 {
            return Answers::read(run);
        }
        let own = if world.rank() == 0 { Answers::read(run)?.to_bytes() } else { Vec::new() };
        let all = world.all_gather_bytes("earlier answers of the reference model", &own)?;
        let first = all.first().map_or(&[][..], Vec::as_slice);
        Answers::from_bytes(first).map_err(|reason| TrainError::Exchanged { reason })
    }
}
