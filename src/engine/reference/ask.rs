//! Asks a model about all samples of a run.

use std::collections::HashSet;

use burn::train::Interrupter;
use firebrick_datasets::{Batch, Batches, Cursor, Requests};
use firebrick_strategies::{Pass, StrategyError};
use firebrick_world::Communicator;

use super::Answers;
use crate::data::Stream;
use crate::engine::feed::{Share, cut};
use crate::engine::optional_batch::Spare;
use crate::engine::session::Session;
use crate::{Data, Objective, ResumeError, TrainError};

/// What a run asks about.
pub(crate) struct Asked<'a, B> {
    /// The data.
    pub data: &'a Data<B>,
    /// The micro-batches per optimizer step, on a rank.
    pub per_step: usize,
    /// Where training starts.
    pub cursor: Cursor,
    /// The steps to come. Some may be skipped, so training may take more of them.
    pub steps: u64,
}

/// Steps that are asked about beyond those of the run, at least, since training skips some of them.
const SKIPPED: u64 = 32;

/// Asks the model of a session about the samples of its steps to come and of the evaluations, unless the answers are
/// `known`. Every rank calls it, and all get all answers. `say` is told the number of answers, from time to time.
///
/// Each micro-batch is one of a run on one rank. The model computes in the dtype of training, with dropout off.
///
/// # Errors
///
/// The data cannot be read, the model has no answers, the run was interrupted, or another rank is lost.
pub(crate) fn ask<M, B>(
    session: &Session<M>,
    asked: Asked<'_, B>,
    known: Answers,
    interrupter: &Interrupter,
    say: impl FnMut(usize),
) -> Result<Answers, TrainError>
where
    M: Objective<B>,
    B: Batch,
{
    let Asked { data, per_step, cursor, steps } = asked;
    let world = session.world().clone();
    let mut asking = Asking {
        model: session.valid_replica(),
        pass: session.pass().apart().evaluating(session.pass().dtype()),
        spare: Spare::new(data.train.clone()),
        pending: Vec::new(),
        waiting: HashSet::new(),
        answers: known,
        interrupter,
        say,
        world: world.clone(),
    };
    // The sample that stands in for missing ones.
    let first = asking.spare.batch()?;
    // Ranks ask about other samples each, and those of a pipeline would run the model together.
    let is_pipeline = session.adaptation().parts().is_some_and(|parts| parts.pipeline().is_some());
    if is_pipeline && first.compared().is_some() {
        return Err(StrategyError::NotCompared.into());
    }
    asking.about(first)?;
    let mut left = steps.saturating_add((steps / 8).max(SKIPPED));
    let whole = cut(data, per_step.saturating_mul(world.size()), Share::WHOLE)?;
    for request in Requests::new(data.train.clone(), cursor, whole) {
        let request = request?;
        if left == 0 {
            break;
        }
        left -= u64::from(request.ends_step.is_some());
        // Several ranks ask one another in each round.
        if world.size() == 1 && interrupter.should_stop() {
            return Err(ResumeError::Interrupted.into());
        }
        asking.about(data.train.batch(request.epoch, request.positions)?)?;
    }
    if let Some(valid) = data.valid.as_ref().filter(|valid| valid.samples(0) > 0) {
        asking.about_epoch(data, valid)?;
    }
    asking.round()?;
    Ok(asking.answers)
}

/// A model that is asked.
struct Asking<'a, M, B: Batch, F> {
    model: M,
    pass: Pass,
    spare: Spare<B>,
    /// The next micro-batches with samples that are not known, at most one for each rank.
    pending: Vec<B>,
    /// The keys of their samples.
    waiting: HashSet<u128>,
    answers: Answers,
    interrupter: &'a Interrupter,
    say: F,
    world: Communicator,
}

impl<M: Objective<B>, B: Batch, F: FnMut(usize)> Asking<'_, M, B, F> {
    fn about_epoch(&mut self, data: &Data<B>, stream: &Stream<B>) -> Result<(), TrainError> {
        for request in Requests::new(stream.clone(), Cursor::default(), cut(data, 1, Share::WHOLE)?) {
            let request = request?;
            if request.epoch > 0 {
                break;
            }
            self.about(stream.batch(0, request.positions)?)?;
        }
        Ok(())
    }

    /// Asks about a micro-batch, unless all of it is known.
    fn about(&mut self, batch: B) -> Result<(), TrainError> {
        let Some(compared) = batch.compared() else { return Ok(()) };
        let keys = compared.keys();
        let is_known = |key: &u128| self.answers.knows(*key) || self.waiting.contains(key);
        if keys.iter().all(is_known) {
            return Ok(());
        }
        self.waiting.extend(keys);
        self.pending.push(batch);
        if self.pending.len() < self.world.size() { Ok(()) } else { self.round() }
    }

    /// Each rank answers about one micro-batch, and all of them learn the answers.
    fn round(&mut self) -> Result<(), TrainError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.waiting.clear();
        let rank = self.world.rank();
        let own = std::mem::take(&mut self.pending).into_iter().nth(rank);
        let (own, has_empty_batch) = match own {
            Some(own) => (Some(own), false),
            None if self.pass.is_collective() => (Some(self.spare.batch()?), true),
            None => (None, true),
        };
        let mut found = Answers::default();
        if let Some(batch) = own {
            let samples = batch.compared().map(|compared| compared.keys()).unwrap_or_default();
            let (entered, pass) = self.pass.clone().empty_batch(has_empty_batch).enter(&self.model)?;
            let numbers = entered.reference(batch, &pass).ok_or(TrainError::NoReference)?;
            pass.check()?;
            let numbers: Vec<f32> = numbers.try_into_vec_as()?;
            if numbers.is_empty() || !numbers.len().is_multiple_of(samples.len()) {
                let found = numbers.len();
                return Err(TrainError::ReferenceNumbers { samples: samples.len(), found });
            }
            if !has_empty_batch {
                found.add(&samples, &numbers);
            }
        }
        let mut stops = self.interrupter.should_stop();
        if self.world.size() == 1 {
            self.answers.merge(&found);
        } else {
            let mut bytes = vec![u8::from(stops)];
            bytes.extend(found.to_bytes());
            for theirs in self.world.all_gather_bytes("answers of the reference model", &bytes)? {
                let (stop, theirs) = theirs.split_first().unwrap_or((&0, &[]));
                stops |= *stop != 0;
                let theirs = Answers::from_bytes(theirs);
                self.answers.merge(&theirs.map_err(|reason| TrainError::Exchanged { reason })?);
            }
        }
        (self.say)(self.answers.len());
        if stops { Err(ResumeError::Interrupted.into()) } else { Ok(()) }
    }
}
