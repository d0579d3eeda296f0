//! What a pass takes in memory, seen on the real model with few of its blocks.
//!
//! Blocks are alike, so that each one more adds as much as the one before it. A forward and a backward pass of the
//! real batch go through models of two and of three blocks at full width, as training would make them and measured as
//! training measures them, and a straight line through both tells of all blocks. Two at least: under ZeRO 3 a
//! block computes while the next one is gathered.

use std::collections::HashMap;

use burn::tensor::Device;
use firebrick_strategies::{Communicator, Draws, host_device};

use super::PlanError;
use super::longest::Longest;
use crate::dry_run::caught;
use crate::memory::{Account, Beyond};
use crate::models::drawn_now;
use crate::run::{Family, Trainable};
use crate::session::{Prepared, checked};
use crate::{Run, RunError, StrategyConfig, TrainError};

/// Blocks of the smaller model.
const FEW: usize = 2;

/// Bytes that a pass has in use beyond those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traced {
    /// As [`Report::activation_bytes`](crate::Report::activation_bytes).
    pub activations: u64,
    /// With the gradients of recomputed segments.
    pub most: u64,
}

impl Traced {
    /// Of a model of so many blocks, by those of [`FEW`] and of one more.
    fn along(few: Self, more: Self, layers: usize) -> Self {
        let line = |few: u64, more: u64| {
            let each = more as f64 - few as f64;
            (few as f64 + each * (layers as f64 - FEW as f64)).max(0.0) as u64
        };
        Self { activations: line(few.activations, more.activations), most: line(few.most, more.most) }
    }
}

/// Traces passes, each kind of them once.
pub(super) struct Tracer<'a, M: Trainable> {
    run: &'a Run,
    config: &'a M::Config,
    longest: &'a Longest<M::Batch>,
    device: Device,
    known: HashMap<String, Traced>,
    is_warm: bool,
}

impl<'a, M: Trainable> Tracer<'a, M> {
    /// # Errors
    ///
    /// This program was built without the CPU.
    pub fn new(
        run: &'a Run,
        config: &'a M::Config,
        longest: &'a Longest<M::Batch>,
    ) -> Result<Self, RunError> {
        let device = host_device().ok_or(PlanError::NoHost)?.autodiff();
        Ok(Self { run, config, longest, device, known: HashMap::new(), is_warm: false })
    }

    /// What a pass takes under these strategies, on one rank alone.
    ///
    /// # Errors
    ///
    /// The strategies do not fit, or the model fails.
    pub fn trace(&mut self, strategies: &[StrategyConfig], say: impl Fn(&str)) -> Result<Traced, RunError> {
        let acting: Vec<_> = strategies.iter().filter(|strategy| acts(strategy)).cloned().collect();
        let written: Vec<_> = acting.iter().map(StrategyConfig::written).collect();
        let name = if written.is_empty() { "no strategies".to_string() } else { written.join(", ") };
        if let Some(traced) = self.known.get(&name) {
            return Ok(*traced);
        }
        say(&format!("tracing a pass with {name}"));
        let layers = self.config.layers();
        let traced = match layers > FEW + 1 {
            false => self.pass(&acting, layers)?,
            true => {
                let few = self.pass(&acting, FEW)?;
                Traced::along(few, self.pass(&acting, FEW + 1)?, layers)
            }
        };
        self.known.insert(name, traced);
        Ok(traced)
    }

    /// A pass through a model of so many blocks: the second of two, since in the first Burn and the
    /// strategies learn what comes after what.
    fn pass(&mut self, strategies: &Vec<StrategyConfig>, layers: usize) -> Result<Traced, RunError> {
        let account = Account::new();
        let _on_it = account.enter();
        let run = self.run;
        self.device.seed(run.seed);
        let model: M = drawn_now(M::init(&self.config.clone().with_layers(layers), &self.device));
        let optimizer = run.optimizer.build(&model, &run.groups())?;
        let device = Some(self.device.clone());
        let prepared = Prepared::new(strategies, model, device, &optimizer, Communicator::solo(), run.seed)?;
        let session = prepared.start(optimizer, run.schedule, run.seed, 1)?;
        let draws = Draws { seed: run.seed, epoch: 0, first: 0 };
        let once = || -> Result<Traced, RunError> {
            let batch = self.longest.batch()?;
            let expected = firebrick_datasets::Batch::items(&batch);
            let beyond = Beyond::begin(&self.device);
            let (model, pass) = session.pass().drawing(draws).enter(session.replica())?;
            let passed = caught(|| -> Result<_, TrainError> {
                let loss = model.loss(batch, &pass);
                let loss = checked(loss.sum, loss.items, expected)? / expected.max(1) as f64;
                Ok(loss.backward())
            });
            let grads = passed.map_err(|panic| PlanError::Model(panic.message))??;
            let taken = beyond.end(&self.device);
            drop(pass.gradients(grads, &model, true)?);
            Ok(Traced { activations: taken.activations as u64, most: taken.most as u64 })
        };
        if !self.is_warm {
            // What the first pass of a process allocates is the process's.
            once()?;
            self.is_warm = true;
        }
        once()?;
        once()
    }
}

/// Whether what a pass takes depends on it.
fn acts(strategy: &StrategyConfig) -> bool {
    match strategy {
        StrategyConfig::Zero(zero) => zero.stage >= 2,
        StrategyConfig::Amp(_)
        | StrategyConfig::Recompute(_)
        | StrategyConfig::Offload(_)
        | StrategyConfig::Lora(_)
        | StrategyConfig::Freeze(_) => true,
        StrategyConfig::Accumulate(_)
        | StrategyConfig::AccumulateIn(..)
        | StrategyConfig::Clip(_)
        | StrategyConfig::Ema(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_further_block_takes_as_much_as_the_third() {
        let few = Traced { activations: 100, most: 120 };
        let more = Traced { activations: 130, most: 160 };
        let expected = Traced { activations: 100 + 10 * 30, most: 120 + 10 * 40 };
        assert_eq!(Traced::along(few, more, 12), expected);
        assert_eq!(Traced::along(few, more, 2), few);
    }
}
