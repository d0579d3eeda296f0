//! Measures the memory of a pass on the real model with few of its blocks.
//!
//! Blocks are alike, so each further block adds as much as the one before it. A forward and a backward pass of the real
//! batch go through models of two and of three blocks, built and measured as in training. A straight line through both
//! results predicts the memory of all blocks. The smaller model has at least two blocks, because ZeRO 3 gathers the next
//! block while one computes. The other ranks are [rehearsed](Communicator::rehearsal).
//!
//! Those models are not as wide as the run's, and a large vocabulary is divided as the width is. What a pass allocates is in
//! the same order at each width, and each size is a polynomial of the width, so passes through models of two, three and four
//! units of width [tell](Allocations::extended) what a pass at full width takes. Where they don't, because the family has no
//! narrower models or a strategy acts by bytes, the pass of a small model is made at full width, and that of a large one is
//! estimated from the peaks of the narrow ones.
//!
//! Parameters are zeros, and little is computed: only what a pass allocates is of interest.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_datasets::counted;
use firebrick_kernels::{Draws, with_share_of_classes, with_zero_results};
use firebrick_strategies::effects::RecomputedBlocks;
use firebrick_strategies::optim::Groups;
use firebrick_strategies::{
    Adaptation, Effects, Mesh, Offload, Offloads, Order, Paths, PipelineStep, Recompute, StrategyError, Zero,
    learns,
};
use firebrick_world::{Communicator, host_device};

use super::in_stages::FirstRank;
use super::longest::Longest;
use super::recomputed::{Lines, mixed};
use crate::run::{Parts, Shape, data_parallel, first_effect, parameters, recipes, skeleton, written};
use crate::{PlanError, Run, RunError, RunStrategy};
use firebrick::engine::dry_run::caught;
use firebrick::engine::session::{PreparedRun, checked};
use firebrick::memory::{Account, Allocations, Beyond, PassPeak, of_machine};
use firebrick::{Loss, Objective, TrainError};
use firebrick_models::family::Narrowing;
use firebrick_models::{AnyConfig, drawn_now};

/// Number of blocks of the smaller model.
const FEW: usize = 2;

/// The units of width of the models that stand for a wider one. With a single head, some copies are views.
const UNITS: [usize; 3] = [2, 3, 4];

/// The most bytes of parameters and gradients of a model whose pass is made at full width although narrower ones could stand for
/// it: it takes a second.
const SMALL: f64 = 5e8;

/// The fewest numbers in all heads of a layer together in a unit.
const NARROWEST: usize = 64;

/// The micro-batches that are traced.
pub(super) enum Traced {
    /// The run's own.
    Run(Longest),
    /// The run's own, and two numbers of rows, which tell what any number takes: all rows are alike.
    Rows([Longest; 3]),
}

impl Traced {
    fn batches(&self) -> &[Longest] {
        match self {
            Self::Run(longest) => std::slice::from_ref(longest),
            Self::Rows(longest) => longest,
        }
    }
}

/// Traces passes, each kind once.
pub(super) struct Tracer<'a> {
    run: &'a Run,
    parts: &'a Parts,
    traced: Traced,
    device: Device,
    paths: Paths,
    known: HashMap<String, Vec<PassMemory>>,
    /// The units that the width of the model is divided into, if narrower ones stand for it.
    units: Option<usize>,
    /// The micro-batches whose passes are traced together.
    micro_batches: usize,
    is_warm: bool,
}

impl<'a> Tracer<'a> {
    /// A tracer that has traced nothing. It computes on the CPU.
    pub fn new(run: &'a Run, parts: &'a Parts, traced: Traced) -> Self {
        let device = host_device().autodiff();
        let paths = Paths::of(&skeleton(&parts.config, &device));
        let units = units_of(&parts.config);
        Self {
            run,
            parts,
            traced,
            device,
            paths,
            known: HashMap::new(),
            units,
            micro_batches: 1,
            is_warm: false,
        }
    }

    /// Whether it knows what any number of rows takes.
    pub fn knows_rows(&self) -> bool {
        matches!(self.traced, Traced::Rows(..))
    }

    /// Returns the paths of the model.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Returns the number of blocks of the model.
    pub fn blocks(&self) -> usize {
        self.paths.blocks().count()
    }

    /// Returns the memory of a pass under these strategies on the first rank, with so many rows if [any number](Traced::Rows) is
    /// known and otherwise with the run's micro-batch, and the share of the blocks that it recomputes.
    ///
    /// # Errors
    ///
    /// The strategies do not fit, or the model fails.
    pub fn trace(
        &mut self,
        strategies: &[RunStrategy],
        shapes: &[Shape],
        rows: usize,
        say: &dyn Fn(&str),
    ) -> Result<(PassPeak, f64), RunError> {
        let acts = |strategy: &&RunStrategy| strategy.effects().acts_in_pass();
        let acting: Vec<_> = strategies.iter().filter(acts).map(balanced).collect();
        let layers = self.parts.config.layers();
        let order =
            Order::of(strategies.iter().map(|strategy| strategy.effects())).map_err(TrainError::from)?;
        if let Some(first) = FirstRank::of(&order, &self.paths, shapes)? {
            // Which blocks run again depends on their number: not more than if none did.
            let some =
                |one: &RunStrategy| one.effects().recomputes.is_some_and(|one| !one.blocks.are_alike());
            let alike: Vec<_> = acting.into_iter().filter(|one| !some(one)).collect();
            let again = alike.iter().any(|one| one.effects().recomputes.is_some());
            self.micro_batches = first.traced_micro_batches();
            let (stages, chunks) = first.stages();
            let [few, more] = [stages, 2 * stages].map(|layers| self.known(&alike, layers, rows, say));
            let lines = Lines::through(few?, more?, [chunks, 2 * chunks]);
            self.micro_batches = 1;
            return Ok((lines.at(first.layers(layers)), if again { 1.0 } else { 0.0 }));
        }
        let recompute = acting.iter().enumerate().find_map(|(at, one)| Some((at, one.effects().recomputes?)));
        let (at, recompute) = match recompute {
            Some((at, recompute)) if !recompute.blocks.are_alike() => (at, recompute),
            alike => {
                let share = match alike {
                    Some((_, recompute)) if recompute.blocks != RecomputedBlocks::Elementwise => 1.0,
                    _ => 0.0,
                };
                if layers <= FEW + 1 || acting.iter().any(names_a_block) {
                    return Ok((self.known(&acting, layers, rows, say)?, share));
                }
                return Ok((self.lines(&acting, rows, say)?.at(layers), share));
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
            (self.lines(&none, rows, say)?.of_each(of_each), self.lines(&all, rows, say)?.of_each(of_each));
        let (kept, input) = (none.activations.each, all.activations.each);
        let held = |again: usize| kept * (blocks - again) as f64 + input * again as f64;
        let again = recompute.blocks.of(&self.paths, held);
        let again = again.map_err(|error| StrategyError::Path { strategy: "Recompute", error })?;
        let share = again.iter().filter(|is_again| **is_again).count() as f64 / blocks.max(1) as f64;
        Ok((mixed(&again, &none, &all), share))
    }

    /// Measures the memory of a pass by its number of blocks. If a list names a block by its number, the traced model
    /// must contain that block.
    fn lines(&mut self, acting: &[RunStrategy], rows: usize, say: &dyn Fn(&str)) -> Result<Lines, RunError> {
        let few = match acting.iter().any(names_a_block) {
            true => self.parts.config.layers().max(FEW + 1) - 1,
            false => FEW,
        };
        let (traced, more) = (self.known(acting, few, rows, say)?, self.known(acting, few + 1, rows, say)?);
        Ok(Lines::through(traced, more, [few, few + 1]))
    }

    /// Measures a pass through a model of `layers` blocks, each kind once.
    fn known(
        &mut self,
        acting: &[RunStrategy],
        layers: usize,
        rows: usize,
        say: &dyn Fn(&str),
    ) -> Result<PassPeak, RunError> {
        let names: Vec<_> = acting.iter().map(written).collect();
        let name = if names.is_empty() { "no strategies".to_string() } else { names.join(", ") };
        let key = format!("{layers} {} {name}", self.micro_batches);
        if !self.known.contains_key(&key) {
            say(&format!("tracing a pass with {name} through {}", counted(layers, "layer")));
            let measured = self.measured(acting, layers)?;
            self.known.insert(key.clone(), measured);
        }
        Ok(peak(&self.traced, &self.known[&key], rows).ok_or(PlanError::Rows)?)
    }

    /// Measures a pass of each micro-batch through a model of `layers` blocks: by narrower ones, or at full width if they don't
    /// tell and it is small. If one fails, the pass at full width says why.
    fn measured(&mut self, acting: &[RunStrategy], layers: usize) -> Result<Vec<PassMemory>, RunError> {
        let config = self.parts.config.with_layers(layers);
        let of = (self.units.unwrap_or(1) / tensor_of(acting)).max(1);
        // Gradients land on the host in buckets, which hold more rows of a narrow model's tables if these are as long as at full
        // width: such models come within some 15% only.
        let lands = acting.iter().any(|one| one.effects().offloads == Some(Offloads::Optimizer));
        let vocabulary = config.vocabulary();
        let is_long = Narrowing { units: 1, of }.vocabulary(vocabulary) == vocabulary;
        let narrow = match lands && is_long && bytes(&config) <= SMALL {
            true => None,
            false => self.narrow(acting, &config),
        };
        let extended = |passes: &[PassMemory; 3]| {
            let all = passes.each_ref().map(|one| one.allocations.clone());
            let [Some(one), Some(two), Some(three)] = all else { return None };
            let whole = Allocations::extended(&[one, two, three], UNITS[0], of)?;
            Some(PassMemory { peak: whole.peak(), allocations: Some(whole) })
        };
        let narrow = narrow.as_deref();
        if let Some(all) = narrow.and_then(|all| all.iter().map(extended).collect()) {
            return Ok(all);
        }
        match narrow {
            Some(all) if bytes(&config) > SMALL => {
                Ok(all.iter().map(|passes| by_peaks(passes, of)).collect())
            }
            _ => {
                require_room(&config)?;
                self.passed(acting, &config)
            }
        }
    }

    /// Measures passes of each micro-batch through models of [`UNITS`] of width; `None` if the family has none, or one fails.
    fn narrow(&mut self, acting: &[RunStrategy], config: &AnyConfig) -> Option<Vec<[PassMemory; 3]>> {
        // Each rank has as many units.
        let (of, tensor) = (self.units?, tensor_of(acting));
        if !of.is_multiple_of(tensor) {
            return None;
        }
        let mut narrow = Vec::new();
        for units in UNITS {
            let to = Narrowing { units: units * tensor, of };
            let vocabulary = to.vocabulary(config.vocabulary());
            let config = config.narrowed(to)?.with_vocabulary(vocabulary);
            let acting: Vec<_> = acting.iter().map(|strategy| in_buckets_of(to, strategy)).collect();
            narrow.push(self.passed(&acting, &config).ok()?.into_iter());
        }
        let of_batch = |_| {
            let passes: Option<Vec<_>> = narrow.iter_mut().map(Iterator::next).collect();
            passes?.try_into().ok()
        };
        (0..self.traced.batches().len()).map(of_batch).collect()
    }

    /// Measures a pass of each micro-batch through a model, behind one in which Burn and the strategies learn the order of
    /// operations.
    fn passed(
        &mut self,
        strategies: &[RunStrategy],
        config: &AnyConfig,
    ) -> Result<Vec<PassMemory>, RunError> {
        let account = Account::new();
        let _on_it = account.enter();
        let run = self.run;
        self.device.seed(run.seed);
        let model = drawn_now(config.init(&self.device).map(&mut Zeros::default()));
        // Parameter groups may name blocks that this model lacks; they do not affect a pass.
        let optimizer = Groups::default().build(&model, &*run.optimizer)?;
        let device = Some(self.device.clone());
        let adaptation = Adaptation::seeded(run.seed).with_fresh(self.parts.fresh.clone());
        let adaptation = adaptation.with_tensor_plan(model.tensor_plan());
        // A pass in which nothing reduces is the same on one rank, unless ranks share tokens; these are not without a sum.
        let mut strategies = strategies.to_vec();
        let any = |of: fn(&Effects) -> bool| strategies.iter().any(|strategy| of(&strategy.effects()));
        let reduces = any(|effects| effects.reduces.is_some());
        let is_divided = any(|effects| effects.context.is_some());
        if is_divided && !reduces {
            strategies.push(data_parallel());
        }
        let ranks = if reduces || is_divided { run.number_of_ranks() } else { 1 };
        let world = Communicator::rehearsal(ranks);
        let prepared = PreparedRun::new(&recipes(&strategies), model, device, &optimizer, world, adaptation)?;
        let session = prepared.start(optimizer, run.schedule.clone(), run.seed, 1)?;
        let draws = Draws { seed: run.seed, epoch: 0, first: 0 };
        let steps = session.pass().steps(self.micro_batches);
        let pass = |longest: &Longest| -> Result<PassPeak, RunError> {
            let forward = steps.iter().filter(|step| matches!(step, PipelineStep::Forward { .. }));
            let batches: Result<Vec<_>, _> = forward.map(|_| longest.batch()).collect();
            let (mut batches, mut between, mut taken) = (batches?.into_iter(), HashMap::new(), None);
            let mut beyond = Some(Beyond::begin(&self.device));
            for (index, step) in steps.iter().enumerate() {
                let passed = caught(|| -> Result<(), TrainError> {
                    match *step {
                        PipelineStep::Forward { micro_batch, chunk } => {
                            let Some(batch) = batches.next() else { return Ok(()) };
                            let expected = firebrick_datasets::Batch::items(&batch);
                            let pass = session.pass().drawing(draws).of_stage(chunk);
                            let (model, pass) = pass.enter(session.replica())?;
                            let loss = pass.forward(|| model.loss(batch, &pass))?;
                            if pass.repeats_batch() {
                                return Err(TrainError::TokensNotDivided);
                            }
                            let checked = |loss: Loss| checked(loss.sum, loss.items, expected);
                            let loss = loss.map(checked).transpose()?;
                            let loss = loss.map(|loss| loss / expected.max(1) as f64);
                            between.insert((micro_batch, chunk), (model, pass, loss));
                        }
                        PipelineStep::Backward { micro_batch, chunk } => {
                            let Some((model, pass, loss)) = between.remove(&(micro_batch, chunk)) else {
                                return Ok(());
                            };
                            let grads = pass.root(loss)?.backward();
                            if index + 1 == steps.len() {
                                taken = beyond.take().map(|beyond| beyond.end(&self.device));
                            }
                            drop(pass.gradients(grads, &model, true)?);
                            Beyond::holding(0, &self.device);
                        }
                    }
                    Ok(())
                });
                passed.map_err(|panic| PlanError::Model(panic.message))??;
            }
            Ok(taken.unwrap_or_default())
        };
        let (vocabulary, whole) = (config.vocabulary(), self.parts.config.vocabulary());
        let once = |longest: &Longest| {
            with_zero_results(|| with_share_of_classes(vocabulary, whole, || pass(longest)))
        };
        let batches = self.traced.batches();
        let few =
            batches.iter().fold(&batches[0], |few, one| if one.tokens < few.tokens { one } else { few });
        if !self.is_warm {
            // The first pass of a process also allocates what the process keeps.
            once(few)?;
        }
        once(few)?;
        let mut measured = Vec::new();
        for longest in batches {
            let (peak, allocations) = Allocations::record(|| once(longest));
            measured.push(PassMemory { peak: peak?, allocations });
        }
        self.is_warm = true;
        Ok(measured)
    }
}

/// Returns a mesh whose stages are those of any number of blocks, and any other strategy as it is.
fn balanced(strategy: &RunStrategy) -> RunStrategy {
    match strategy.downcast_ref::<Mesh>() {
        Some(mesh) => RunStrategy::new("Mesh", mesh.clone().stages([])),
        None => strategy.clone(),
    }
}

/// Returns the number of ranks that share layers.
fn tensor_of(acting: &[RunStrategy]) -> usize {
    first_effect(acting, |effects| effects.tensor).unwrap_or(1).max(1)
}

/// What a pass takes.
struct PassMemory {
    peak: PassPeak,
    allocations: Option<Allocations>,
}

/// Returns the peak of a pass of so many rows, or of the run's micro-batch. `None` if passes of other numbers of rows don't tell.
fn peak(traced: &Traced, measured: &[PassMemory], rows: usize) -> Option<PassPeak> {
    let (Traced::Rows([own, few, more]), [_, one, two]) = (traced, measured) else {
        return Some(measured[0].peak);
    };
    if rows == own.samples {
        return Some(measured[0].peak);
    }
    let (one, two) = (one.allocations.as_ref()?, two.allocations.as_ref()?);
    Some(Allocations::with_rows([(one, few.samples), (two, more.samples)], rows)?.peak())
}

/// Returns a strategy whose buckets hold as many matrices of a narrower model as of the whole one.
fn in_buckets_of(to: Narrowing, strategy: &RunStrategy) -> RunStrategy {
    let zero = || {
        // Of a wide model, each matrix fills a bucket.
        let zero = strategy.downcast_ref::<Zero>()?.clone();
        Some(RunStrategy::new("Zero", zero.bucket_bytes(1)))
    };
    let offload = || {
        let (offload, bucket) = (strategy.downcast_ref::<Offload>()?.clone(), strategy.effects().moves?);
        let share = (to.units as f64 / to.of as f64).powi(2);
        Some(RunStrategy::new("Offload", offload.bucket_bytes(((bucket as f64 * share) as usize).max(1))))
    };
    zero().or_else(offload).unwrap_or_else(|| strategy.clone())
}

/// Returns what a pass takes by the peaks of passes through models of [`UNITS`] of width, whose allocations differ in order: on
/// the parabola through them.
fn by_peaks(passes: &[PassMemory; 3], of: usize) -> PassMemory {
    let further = (of - UNITS[0]) as f64;
    let parabola = |of: fn(&PassPeak) -> usize| {
        let [one, two, three] = passes.each_ref().map(|one| of(&one.peak) as f64);
        let (near, far) = (two - one, three - two);
        (one + near * further + (far - near) * (further * (further - 1.0) / 2.0)).max(three) as usize
    };
    let peak = PassPeak { activations: parabola(|peak| peak.activations), most: parabola(|peak| peak.most) };
    PassMemory { peak, allocations: None }
}

/// Bytes of a model's parameters and gradients in f32.
fn bytes(config: &AnyConfig) -> f64 {
    8.0 * parameters(config)
}

/// Rejects a model that does not fit this machine: parameters and gradients in f32.
fn require_room(config: &AnyConfig) -> Result<(), PlanError> {
    let text = |bytes: f64| format!("{:.1} GB", bytes / 1e9);
    let needed = bytes(config);
    match of_machine() {
        Some(available) if needed > available as f64 => Err(PlanError::TooWide {
            layers: config.layers(),
            needed: text(needed),
            available: text(available as f64),
        }),
        _ => Ok(()),
    }
}

/// Returns the most units that the width of a model can be divided into, if that makes it much narrower.
fn units_of(config: &AnyConfig) -> Option<usize> {
    let width = |config: &AnyConfig| config.attention().first().map(|attention| attention.width);
    (UNITS[2] + 1..=width(config)? / NARROWEST).rev().find(|&of| {
        config.narrowed(Narrowing { units: 1, of }).is_some_and(|narrow| {
            narrow.check().is_ok() && width(&narrow).is_some_and(|width| width >= NARROWEST)
        })
    })
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
        let few = PassPeak { activations: 100, most: 120 };
        let more = PassPeak { activations: 130, most: 160 };
        let expected = PassPeak { activations: 100 + 10 * 30, most: 120 + 10 * 40 };
        assert_eq!(Lines::through(few, more, [FEW, FEW + 1]).at(12), expected);
        assert_eq!(Lines::through(few, more, [FEW, FEW + 1]).at(2), few);
    }
}
