//! Ranks as threads, compared with one model that sees all of their rows.

mod ahead;
mod arriving;
mod groups;
mod orders;
mod step;
mod traffic;
mod transports;
mod whole;

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use firebrick_strategies::{
    Accumulate, Amp, Clip, Composed, Composition, Grads, LossScale, Offload, Outcome, ParamMap, Pass,
    Recompute, Setup, StrategyError, Zero, map_params, relift, tie,
};
use firebrick_world::{Communicator, World};

const WIDTH: usize = 10;
/// Rows of a global batch: four ranks do not divide the 6 rows of a micro-batch.
const ROWS: usize = 12;
const MICRO_BATCHES: usize = 2;
const UPDATES: usize = 3;

#[derive(Module, Debug)]
struct Block {
    wide: Linear,
    narrow: Linear,
    /// The same parameter as the model's `exit`.
    tied: Linear,
    frozen: Linear,
}

/// Three blocks between an entry and an exit. The exit's weight is also in each block.
#[derive(Module, Debug)]
struct Model {
    entry: Linear,
    blocks: Vec<Block>,
    exit: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let exit: Linear = linear(WIDTH, WIDTH);
        let block = || Block {
            wide: linear(WIDTH, 3 * WIDTH),
            narrow: linear(3 * WIDTH, WIDTH),
            tied: exit.clone(),
            frozen: linear(WIDTH, WIDTH).no_grad(),
        };
        let model = Self { entry: linear(WIDTH, WIDTH), blocks: vec![block(), block(), block()], exit };
        map_params(model, &mut Waves(0.0))
    }

    /// Maps `[rows, WIDTH]` to the sum of squares of the outputs, in f32.
    fn loss(&self, x: Tensor<2>, pass: &Pass) -> Tensor<1> {
        self.loss_counting(x, pass, Arc::default())
    }

    /// The same, and counts how often blocks have run.
    fn loss_counting(&self, x: Tensor<2>, pass: &Pass, ran: Arc<AtomicUsize>) -> Tensor<1> {
        let run = move |block: &Block, x: Tensor<2>, _: &Pass| {
            ran.fetch_add(1, Ordering::SeqCst);
            let hidden = block.wide.forward(x.clone()).tanh();
            let x = x.clone() + block.narrow.forward(hidden) + block.frozen.forward(x);
            block.tied.forward(x).sin()
        };
        let x = self.entry.forward(x.cast(FloatDType::from(self.entry.weight.val().dtype())));
        let x = self.blocks.iter().fold(x, |x, block| pass.segment(block, x, run.clone()));
        self.exit.forward(x).cast(FloatDType::F32).square().sum()
    }
}

/// The effect of another order of f32 sums, relative to the distance that training moves.
const TOLERANCE: f32 = 1e-5;
/// The same for half precision: bf16 alone differs by 0.6% from f32, and f16 by 0.1%.
const OF_HALF: f32 = 1e-2;

/// Pseudo-random values without a generator.
struct Waves(f64);

impl ParamMap for Waves {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        self.0 += 0.7;
        let shape = value.shape();
        let values = waves(shape.num_elements(), self.0);
        let drawn = Tensor::<1>::from_data(values.as_slice(), &value.device().inner());
        // Small values: with larger ones, gradients would depend on the last bit of the input.
        relift((drawn * 0.4).reshape(shape), &value)
    }
}

fn waves(count: usize, phase: f64) -> Vec<f32> {
    (0..count).map(|i| ((i as f64 * 1.7 + phase).sin() * 0.4) as f32).collect()
}

/// Returns the device that `BURN_DEVICE` names, or the CPU by default.
fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex().autodiff(),
        #[cfg(feature = "cube")]
        Ok(_) => Device::default().autodiff(),
        #[cfg(not(feature = "cube"))]
        Ok(other) => panic!("this build has no {other}"),
    }
}

/// Returns a rank's rows of a micro-batch; the last ranks may get fewer, or none.
fn rows(update: usize, micro: usize, rank: usize, ranks: usize) -> Option<Tensor<2>> {
    let each = (ROWS / MICRO_BATCHES).div_ceil(ranks);
    let (from, to) = (rank * each, ((rank + 1) * each).min(ROWS / MICRO_BATCHES));
    if from >= to {
        return None;
    }
    let all = waves(ROWS * WIDTH, 1.0 + update as f64);
    let start = micro * ROWS / MICRO_BATCHES;
    let own = all[(start + from) * WIDTH..(start + to) * WIDTH].to_vec();
    Some(Tensor::from_data(TensorData::new(own, [to - from, WIDTH]), &device()))
}

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().with_epsilon(1e-3).with_weight_decay(0.1).init()
}

fn values(model: &Model) -> Vec<f32> {
    struct Values(Vec<f32>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.base().into_data().iter::<f32>());
        }
    }
    let mut values = Values(Vec::new());
    model.visit(&mut values);
    values.0
}

/// Trains with a plain Burn loop on all rows. Also returns the norm of the first update's gradients.
fn plain() -> (Vec<f32>, f32) {
    let (mut model, mut optimizer) = (Model::new(&device()), optimizer());
    let mut norms = Vec::new();
    for update in 0..UPDATES {
        let pass = Pass::train(&device());
        let losses = (0..MICRO_BATCHES).map(|micro| model.loss(rows(update, micro, 0, 1).unwrap(), &pass));
        let loss = losses.reduce(|a, b| a + b).unwrap() / ROWS as f64;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let mut facts = Grads::new(grads, true);
        norms.push(facts.norm(&model).unwrap().into_scalar::<f32>());
        model = tie(optimizer.step(1e-2, model, facts.into_params()));
    }
    (values(&model), norms[0])
}

/// Runs one rank. Returns the whole model at the end, and the first norm.
fn rank<R: Composition<Model>>(world: Communicator, recipe: R) -> Result<(Vec<f32>, f32), StrategyError> {
    rank_counted(world, recipe, |_| ()).map(|(found, ())| found)
}

/// Like [`rank`], and also returns the result of `look` after the rank's last update.
fn rank_counted<R: Composition<Model>, T>(
    world: Communicator,
    recipe: R,
    look: impl Fn(&Communicator) -> T,
) -> Result<((Vec<f32>, f32), T), StrategyError> {
    let device = device();
    // Only rank 0's values count.
    let model = match world.rank() {
        0 => Model::new(&device),
        _ => map_params(Model::new(&device), &mut Waves(5.0)),
    };
    let mut setup = Setup::new(&model, &device).among(world.clone());
    let mut stage = recipe.start(&mut setup)?;
    let pass = setup.into_pass();
    let mut master = stage.init_master(model)?;
    let mut optimizer = optimizer();
    let mut norms = Vec::new();
    for update in 0..UPDATES {
        let replica = stage.publish(master.clone())?;
        master = stage.alias_master(master, &replica);
        let mut outcome = Outcome::Hold;
        let pass = pass.of_step();
        for micro in 0..MICRO_BATCHES {
            let own = rows(update, micro, world.rank(), world.size());
            // A rank without rows computes on another rank's rows, with an empty batch.
            let pass = pass.drawing(pass.draws()).empty_batch(own.is_none());
            let x = own.unwrap_or_else(|| rows(update, micro, 0, world.size()).unwrap());
            let (entered, pass) = pass.enter(&replica)?;
            let loss = entered.loss(x, &pass) / ROWS as f64;
            let scale = stage.loss_scale().unwrap_or(1.0);
            let grads = (loss * scale).backward();
            let grads = pass.gradients(grads, &entered, micro + 1 == MICRO_BATCHES)?;
            outcome = stage.collect(&master, grads)?;
        }
        let Outcome::Apply(mut grads) = outcome else { panic!("the step ends") };
        norms.push(grads.norm(&master)?.into_scalar::<f32>());
        drop(replica);
        master = stage.unalias_master(master);
        let grads = grads.for_update(&master, &HashSet::new());
        master = tie(optimizer.step(1e-2, master, grads));
    }
    let looked = look(&world);
    let whole = stage.gather_full(master, None)?.expect("every rank asks for it");
    Ok(((values(&whole), norms[0]), looked))
}

/// Runs the ranks, and returns the result of each.
fn ranks<R>(count: usize, recipe: R) -> Vec<Result<(Vec<f32>, f32), StrategyError>>
where
    R: Composition<Model> + Clone,
{
    let spawn = |world| {
        let recipe = recipe.clone();
        std::thread::spawn(move || rank(world, recipe))
    };
    let threads: Vec<_> = World::threads(count).join().unwrap().into_iter().map(spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt()
}

fn zero(stage: u8) -> Zero {
    Zero::stage(stage).replicate_below(40)
}

/// Groups of so many ranks, with a copy each, over steps of several micro-batches.
fn hybrid(stage: u8, within: usize) -> impl Composition<Model> + Clone {
    Composed::new().with(zero(stage).within(within)).with(Accumulate(MICRO_BATCHES))
}

fn follows<R: Composition<Model> + Clone>(count: usize, recipe: R, tolerance: f32) {
    follows_run(plain(), count, recipe, tolerance);
}

fn follows_run<R>(expected: (Vec<f32>, f32), count: usize, recipe: R, tolerance: f32)
where
    R: Composition<Model> + Clone,
{
    follow_found(ranks(count, recipe.clone()), &expected, &recipe, tolerance);
}

/// Asserts that the ranks' results are the expected ones.
fn follow_found(
    found: Vec<Result<(Vec<f32>, f32), StrategyError>>,
    (expected, norm): &(Vec<f32>, f32),
    recipe: &impl std::fmt::Debug,
    tolerance: f32,
) {
    let count = found.len();
    // CUDA's kernels may round the operands of products to TF32, and which ones do is found by trial.
    let tolerance = if is_cuda() { tolerance.max(2e-3) } else { tolerance };
    for (rank, found) in found.into_iter().enumerate() {
        let name = format!("rank {rank} of {count}, {recipe:?}");
        let (found, found_norm) = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let apart = distance(&found, expected) / distance(expected, &values(&Model::new(&device())));
        assert!(apart < tolerance, "{name}: apart by {apart:e} of what training moves");
        assert!((found_norm / norm - 1.0).abs() < tolerance, "{name}: norm {found_norm}, not {norm}");
    }
}

fn is_cpu() -> bool {
    std::env::var("BURN_DEVICE").map_or(true, |name| name == "cpu" || name == "flex")
}

fn is_cuda() -> bool {
    std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("cuda"))
}

/// Numbers of ranks: fewer if a processor emulates the GPU.
fn counts(on_cpu: &'static [usize]) -> impl Iterator<Item = usize> {
    let all = if is_cpu() { on_cpu } else { &on_cpu[on_cpu.len() - 1..] };
    all.iter().copied()
}

/// Stages for combinations with other strategies: the last alone if a processor emulates the GPU, where
/// `every_stage_on_every_number_of_ranks_follows_one_model` has them all.
fn stages(first: u8) -> RangeInclusive<u8> {
    if is_cpu() { first..=3 } else { 3..=3 }
}

/// Returns mixed precision in a dtype that the device supports.
fn half() -> Amp {
    match device().supports_dtype(FloatDType::BF16) {
        true => Amp::bf16(),
        false => Amp::f16().scaled_by(LossScale::constant(64.0)),
    }
}

#[test]
fn every_stage_on_every_number_of_ranks_follows_one_model() {
    for stage in 0..=3 {
        for count in counts(&[1, 2, 3, 4]) {
            follows(count, Composed::new().with(zero(stage)).with(Accumulate(MICRO_BATCHES)), TOLERANCE);
        }
    }
}

#[test]
fn so_do_neighbours() {
    let accumulate = || Accumulate(MICRO_BATCHES);
    for count in counts(&[2, 3]) {
        for stage in stages(1) {
            let clipped = Composed::new().with(zero(stage)).with(accumulate()).with(Clip::norm(1e9));
            follows(count, clipped, TOLERANCE);
            let recomputed =
                Composed::new().with(Recompute::every_block()).with(zero(stage)).with(accumulate());
            follows(count, recomputed, TOLERANCE);
            let mixed = |zero| Composed::new().with(zero).with(half()).with(accumulate());
            let alone = rank(Communicator::solo(), mixed(None)).unwrap();
            follows_run(alone, count, mixed(Some(zero(stage))), OF_HALF);
        }
    }
}

#[test]
fn so_does_what_is_offloaded() {
    let accumulate = || Accumulate(MICRO_BATCHES);
    for offload in [Offload::optimizer(), Offload::parameters()] {
        follows(1, Composed::new().with(offload.clone()).with(accumulate()), TOLERANCE);
        follows(
            1,
            Composed::new().with(Recompute::every(2)).with(offload.clone()).with(accumulate()),
            TOLERANCE,
        );
        for stage in stages(0) {
            for count in counts(&[1, 3]) {
                follows(
                    count,
                    Composed::new().with(zero(stage)).with(offload.clone()).with(accumulate()),
                    TOLERANCE,
                );
            }
            let mixed =
                |zero, offload| Composed::new().with(zero).with(offload).with(half()).with(accumulate());
            let alone = rank(Communicator::solo(), mixed(None, None)).unwrap();
            follows_run(alone, 2, mixed(Some(zero(stage)), Some(offload.clone())), OF_HALF);
        }
    }
    follows(2, Composed::new().with(accumulate()).with(Offload::optimizer()).with(zero(1)), TOLERANCE);
}

#[test]
fn a_block_parameter_read_outside_its_segment_is_named() {
    let found = ranks(2, Composed::new().with(zero(3).blocks(["entry"])).with(Accumulate(MICRO_BATCHES)));
    for found in found {
        let error = found.unwrap_err().to_string();
        assert!(error.contains("`entry.weight` is read outside the segment"), "{error}");
    }
}

/// The blocks' parameters are provided in their own segments, which the model does not open.
#[test]
fn a_segment_of_several_blocks_brings_none_of_them() {
    let blocks = ["blocks.*.wide", "blocks.*.narrow"];
    for found in ranks(2, Composed::new().with(zero(3).blocks(blocks)).with(Accumulate(MICRO_BATCHES))) {
        let error = found.unwrap_err().to_string();
        assert!(error.contains("`blocks.0.wide.weight` is read outside the segment"), "{error}");
    }
}
