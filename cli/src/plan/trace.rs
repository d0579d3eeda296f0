//! Measures the memory of a pass on the real model with few of its blocks.
//!
//! Blocks are alike, so each further block adds as much as the one before it. A forward and a backward pass of the real
//! batch go through models of two and of three blocks at full width, built and measured as in training. A straight line
//! through both results predicts the memory of all blocks. The smaller model has at least two blocks, because ZeRO 3
//! gathers the next block while one computes. The other ranks are [rehearsed](Communicator::rehearsal).
//!
//! Parameters are zeros, and so are products, which are not computed: only what they allocate is of interest.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_datasets::counted;
use firebrick_kernels::{Draws, with_zero_products};
use firebrick_strategies::effects::RecomputedBlocks;
use firebrick_strategies::optim::Groups;
use firebrick_strategies::{Adaptation, Paths, Recompute, StrategyError, learns};
use firebrick_world::{Communicator, host_device};

use super::PlanError;
use super::longest::Longest;
use super::recomputed::{Lines, Traced, mixed};
use crate::run::{Parts, parameters, recipes, skeleton, written};
use crate::{Run, RunError, RunStrategy};
use firebrick::engine::dry_run::caught;
use firebrick::engine::session::{PreparedRun, checked};
use firebrick::memory::{Account, Beyond, of_machine};
use firebrick::{AnyModel, Objective, TrainError};
use firebrick_models::drawn_now;
use firebrick_models::family::{Family, Trainable};

/// Number of blocks of the smaller model.
const FEW: usize = 2;

/// Traces passes, each kind once.
pub(super) struct Tracer<'a, M: Trainable> {
    run: &'a Run,
    parts: &'a Parts<M>,
    longest: &'a Longest<M::Batch>,
    device: Device,
    paths: Paths,
    known: HashMap<String, Traced>,
    is_warm: bool,
}

impl<'a, M: Trainable> Tracer<'a, M> {
    /// A tracer that has traced nothing. It computes on the CPU.
    pub fn new(run: &'a Run, parts: &'a Parts<M>, longest: &'a Longest<M::Batch>) -> Self {
        let device = host_device().autodiff();
        let paths = Paths::of(&skeleton::<M>(parts.config.clone(), &device));
        Self { run, parts, longest, device, paths, known: HashMap::new(), is_warm: false }
    }

    /// Rejects a model whose few blocks alone do not fit this machine: parameters and gradients in f32.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooWide`].
    pub fn require_room(&self) -> Result<(), PlanError> {
        let config = &self.parts.config;
        let layers = config.layers().min(FEW + 1);
        let text = |bytes: f64| format!("{:.1} GB", bytes / 1e9);
        let needed = 8.0 * parameters::<M>(&config.clone().with_layers(layers));
        match of_machine() {
            Some(available) if needed > available as f64 => {
                Err(PlanError::TooWide { layers, needed: text(needed), available: text(available as f64) })
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of blocks of the model.
    pub fn blocks(&self) -> usize {
        self.paths.blocks().count()
    }

    /// Returns the memory of a pass under these strategies on the first rank, and the share of the blocks that it
    /// recomputes.
    ///
    /// # Errors
    ///
    /// The strategies do not fit, or the model fails.
    pub fn trace(
        &mut self,
        strategies: &[RunStrategy],
        say: impl Fn(&str),
    ) -> Result<(Traced, f64), RunError> {
        let acts = |strategy: &&RunStrategy| strategy.effects().acts_in_pass();
        let acting: Vec<_> = strategies.iter().filter(acts).cloned().collect();
        let layers = self.parts.config.layers();
        let recompute = acting.iter().enumerate().find_map(|(at, one)| Some((at, one.effects().recomputes?)));
        let (at, recompute) = match recompute {
            Some((at, recompute)) if !recompute.blocks.are_alike() => (at, recompute),
            alike => {
                let share = match alike {
                    Some((_, recompute)) if recompute.blocks != RecomputedBlocks::Elementwise => 1.0,
                    _ => 0.0,
                };
                if layers <= FEW + 1 || acting.iter().any(names_a_block) {
                    return Ok((self.known(&acting, layers, &say)?, share));
                }
                return Ok((self.lines(&acting, &say)?.at(layers), share));
            }
        };
        let (mut none, mut all) = (acting.clone(), acting.clone());
        none.remove(at);
        let every = Recompute::every_block();
        let every = if recompute.offloaded { every.offloaded() } else { every };
        all[at] = RunStrategy::new("Recompute", every);
        let blocks = self.paths.blocks().count();
        let of_each = blocks as f64 / layers.max(1) as f64;
        let (none, all) =
            (self.lines(&none, &say)?.of_each(of_each), self.lines(&all, &say)?.of_each(of_each));
        let (kept, input) = (none.activations.each, all.activations.each);
        let held = |again: usize| kept * (blocks - again) as f64 + input * again as f64;
        let again = recompute.blocks.of(&self.paths, held);
        let again = again.map_err(|error| StrategyError::Path { strategy: "Recompute", error })?;
        let share = again.iter().filter(|is_again| **is_again).count() as f64 / blocks.max(1) as f64;
        Ok((mixed(&again, &none, &all), share))
    }

    /// Measures the memory of a pass by its number of blocks. If a list names a block by its number, the traced model
    /// must contain that block.
    fn lines(&mut self, acting: &[RunStrategy], say: impl Fn(&str)) -> Result<Lines, RunError> {
        let few = match acting.iter().any(names_a_block) {
            true => self.parts.config.layers().max(FEW + 1) - 1,
            false => FEW,
        };
        let (traced, more) = (self.known(acting, few, &say)?, self.known(acting, few + 1, &say)?);
        Ok(Lines::through(traced, more, few))
    }

    /// Measures a pass through a model of `layers` blocks, each kind once.
    fn known(
        &mut self,
        acting: &[RunStrategy],
        layers: usize,
        say: impl Fn(&str),
    ) -> Result<Traced, RunError> {
        let names: Vec<_> = acting.iter().map(written).collect();
        let name = if names.is_empty() { "no strategies".to_string() } else { names.join(", ") };
        let key = format!("{layers} {name}");
        if let Some(traced) = self.known.get(&key) {
            return Ok(*traced);
        }
        say(&format!("tracing a pass with {name} through {}", counted(layers, "layer")));
        let traced = self.pass(acting, layers)?;
        self.known.insert(key, traced);
        Ok(traced)
    }

    /// Measures a pass through a model of `layers` blocks. It takes the second of two passes, because in the first one
    /// Burn and the strategies learn the order of operations.
    fn pass(&mut self, strategies: &[RunStrategy], layers: usize) -> Result<Traced, RunError> {
        let account = Account::new();
        let _on_it = account.enter();
        let run = self.run;
        self.device.seed(run.seed);
        let config = self.parts.config.clone().with_layers(layers);
        let model: M = drawn_now(M::init(&config, &self.device).map(&mut Zeros::default()));
        // Parameter groups may name blocks that this model lacks; they do not affect a pass.
        let optimizer = Groups::default().build(&model, &*run.optimizer)?;
        let device = Some(self.device.clone());
        let model = AnyModel::new::<M::Batch>(model);
        let adaptation = Adaptation::seeded(run.seed).with_fresh(self.parts.fresh.clone());
        // A pass in which nothing reduces is the same on one rank.
        let reduces = strategies.iter().any(|strategy| strategy.effects().reduces.is_some());
        let ranks = if reduces { run.number_of_ranks() } else { 1 };
        let world = Communicator::rehearsal(ranks);
        let prepared = PreparedRun::new(&recipes(strategies), model, device, &optimizer, world, adaptation)?;
        let session = prepared.start(optimizer, run.schedule.clone(), run.seed, 1)?;
        let draws = Draws { seed: run.seed, epoch: 0, first: 0 };
        let pass = || -> Result<Traced, RunError> {
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
        // Products take most of a pass, and what they are does not matter.
        let once = || with_zero_products(pass);
        if !self.is_warm {
            // The first pass of a process also allocates what the process keeps.
            once()?;
            self.is_warm = true;
        }
        once()?;
        once()
    }
}

/// Makes parameters zeros: drawing them would take longer than a pass.
#[derive(Default)]
struct Zeros {
    /// Those that are there, by their ids: tied ones stay one.
    there: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleMapper for Zeros {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, shape) = (param.id, param.lazy_shape());
        let known = self.there.get(&id).and_then(|there| there.downcast_ref::<Param<Tensor<D>>>());
        known.cloned().unwrap_or_else(|| {
            let zeros = Tensor::zeros(shape, &param.lazy_device()).set_require_grad(learns(&param));
            let zeros = Param::initialized(id, zeros);
            self.there.insert(id, Box::new(zeros.clone()));
            zeros
        })
    }
}

fn names_a_block(strategy: &RunStrategy) -> bool {
    strategy.effects().names_a_block()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_further_block_takes_as_much_as_the_third() {
        let few = Traced { activations: 100, most: 120 };
        let more = Traced { activations: 130, most: 160 };
        let expected = Traced { activations: 100 + 10 * 30, most: 120 + 10 * 40 };
        assert_eq!(Lines::through(few, more, FEW).at(12), expected);
        assert_eq!(Lines::through(few, more, FEW).at(2), few);
    }
}
