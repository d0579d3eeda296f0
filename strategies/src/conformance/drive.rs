//! A run of the checks: optimizer steps through a composition, in the order of the trainer's calls.

use std::collections::HashSet;
use std::ops::Range;

use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::Device;
use firebrick_world::Communicator;

use super::Probe;
use crate::{
    Composition, Draws, Grads, Outcome, Pass, Settled, Setup, SkipReason, StageState, Stages, StrategyError,
};

/// Samples of a global batch.
const SAMPLES: usize = 8;

/// How the samples of a global batch are spread over its micro-batches.
#[derive(Clone, Copy)]
pub enum Spread {
    /// Alike, as far as they divide.
    Even,
    /// All in the last one; the others have no gradients.
    AtOnce,
}

/// A run between two steps.
pub struct Drive {
    stages: Stages<Probe>,
    /// Master and replica; absent only during an update.
    pair: Option<(Probe, Probe)>,
    /// Without a state of its own.
    optimizer: ModuleOptimizer,
    pass: Pass,
    /// Micro-batches per optimizer step.
    per_step: usize,
    sums: bool,
    /// The samples of this rank in a global batch.
    share: Range<usize>,
}

impl Drive {
    /// Starts the strategies on an adapted model.
    pub fn start(
        recipe: &impl Composition<Probe>,
        model: Probe,
        device: &Device,
    ) -> Result<Self, StrategyError> {
        Self::resume(recipe, model, device, |_| Ok(()))
    }

    /// Starts the strategies on one of several ranks, each of which takes its share of every global batch.
    pub fn start_among(
        recipe: &impl Composition<Probe>,
        model: Probe,
        device: &Device,
        world: Communicator,
    ) -> Result<Self, StrategyError> {
        Self::begin(recipe, model, device, world, |_| Ok(()))
    }

    /// Starts on a saved master, and restores the stages once they have published it.
    pub fn resume(
        recipe: &impl Composition<Probe>,
        model: Probe,
        device: &Device,
        restore: impl FnOnce(&mut Stages<Probe>) -> Result<(), StrategyError>,
    ) -> Result<Self, StrategyError> {
        Self::begin(recipe, model, device, Communicator::solo(), restore)
    }

    fn begin(
        recipe: &impl Composition<Probe>,
        model: Probe,
        device: &Device,
        world: Communicator,
        restore: impl FnOnce(&mut Stages<Probe>) -> Result<(), StrategyError>,
    ) -> Result<Self, StrategyError> {
        let (rank, ranks) = (world.rank(), world.size());
        let share = SAMPLES * rank / ranks..SAMPLES * (rank + 1) / ranks;
        let mut setup = Setup::new(&model, device).among(world);
        let mut stages = recipe.start(&mut setup)?;
        let (per_step, sums) = (setup.order().micro_batches(), setup.order().sums_micro_batches());
        let pass = setup.into_pass();
        let master = stages.init_master(model)?;
        let pair = Some(publish(&mut stages, master)?);
        restore(&mut stages)?;
        Ok(Self { stages, pair, optimizer: SgdConfig::new().init(), pass, per_step, sums, share })
    }

    /// Whether a strategy sums micro-batches.
    pub fn sums(&self) -> bool {
        self.sums
    }

    pub fn master(&self) -> &Probe {
        self.pair().0
    }

    fn pair(&self) -> (&Probe, &Probe) {
        let (master, replica) = self.pair.as_ref().expect("both are back after each update");
        (master, replica)
    }

    /// Returns what a checkpoint has of the run: the stages' states, the average if there is one, and the master.
    pub fn saved(&mut self) -> (Vec<StageState>, Option<Probe>, Probe) {
        (self.stages.save(), self.stages.averaged(), self.master().clone())
    }

    /// Runs an optimizer step. Of every three, one overflows and makes no update.
    pub fn step(&mut self, number: usize, spread: Spread) -> Result<(), StrategyError> {
        let scale = self.stages.loss_scale().unwrap_or(1.0) / SAMPLES as f64;
        let poison = if number % 3 == 1 { f64::INFINITY } else { 1.0 };
        let mut outcome = Outcome::Hold;
        let pass = self.pass.of_step();
        for micro in 0..self.per_step {
            let closes = micro + 1 == self.per_step;
            let all = self.share.len();
            let samples = match spread {
                Spread::Even => all * micro / self.per_step..all * (micro + 1) / self.per_step,
                Spread::AtOnce => 0..if closes { all } else { 0 },
            };
            let (master, replica) = self.pair.as_ref().expect("both are back after each update");
            let grads = if samples.is_empty() {
                Grads::new(GradientsParams::new(), closes)
            } else {
                let first = SAMPLES * number + self.share.start;
                let samples = first + samples.start..first + samples.end;
                let draws = Draws { first: samples.start as u64, ..pass.draws() };
                let (entered, pass) = pass.drawing(draws).enter(replica)?;
                let loss = entered.loss(samples, &pass);
                pass.gradients((loss * scale * poison).backward(), &entered, closes)?
            };
            outcome = self.stages.collect(master, grads)?;
        }
        drop(pass);
        let settled = match outcome {
            Outcome::Apply(mut grads) => {
                let norm = grads.norm(self.master())?.into_scalar::<f32>();
                match grads.skip() {
                    Some(reason) => Settled::Skipped(reason.clone()),
                    None if !norm.is_finite() => Settled::Skipped(SkipReason::NonFinite),
                    None => {
                        self.update(grads)?;
                        Settled::Applied
                    }
                }
            }
            Outcome::Skip(reason) => Settled::Skipped(reason),
            Outcome::Hold => Settled::Skipped(SkipReason::NoItems),
        };
        self.stages.after_step(&settled)
    }

    /// Returns the whole model, on every rank.
    pub fn whole(&mut self) -> Result<Option<Probe>, StrategyError> {
        let master = self.master().clone();
        self.stages.gather_full(master, None)
    }

    fn update(&mut self, grads: Grads) -> Result<(), StrategyError> {
        let Some((master, replica)) = self.pair.take() else { return Ok(()) };
        drop(replica);
        let master = self.stages.unalias_master(master);
        let grads = grads.for_update(&master, &HashSet::new());
        let master = self.optimizer.step(0.1, master, grads);
        self.pair = Some(publish(&mut self.stages, master)?);
        Ok(())
    }
}

fn publish(stages: &mut Stages<Probe>, master: Probe) -> Result<(Probe, Probe), StrategyError> {
    stages.updated(&master);
    let replica = stages.publish(master.clone())?;
    Ok((stages.alias_master(master, &replica), replica))
}
