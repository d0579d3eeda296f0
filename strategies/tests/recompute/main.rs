//! Recomputed segments compared with the same segments without recomputation.

mod end_of_segment;
mod gathered;
mod held;
mod refused;

use std::sync::Mutex;

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, TensorData};
use firebrick_kernels::memory::{Counting, in_use};
use firebrick_strategies::{
    Amp, Composed, Composition, ParamMap, Pass, Paths, Recompute, Setup, StrategyError, map_params, relift,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocator counts the whole process, so tests that measure take turns with all other tests.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Module, Debug)]
struct Block {
    wide: Linear,
    narrow: Linear,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Block>,
}

const WIDTH: usize = 16;

impl Block {
    fn new(dropout: f64, device: &Device) -> Self {
        Self {
            wide: LinearConfig::new(WIDTH, 3 * WIDTH).init(device),
            narrow: LinearConfig::new(3 * WIDTH, WIDTH).init(device),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.wide.forward(x.clone()).tanh();
        x + self.dropout.forward(self.narrow.forward(hidden)).sin()
    }
}

impl Model {
    fn new(blocks: usize, dropout: f64, device: &Device) -> Self {
        let model = Self { blocks: (0..blocks).map(|_| Block::new(dropout, device)).collect() };
        map_params(model, &mut Waves(0.0))
    }

    fn forward(&self, x: Tensor<2>, pass: &Pass) -> Tensor<2> {
        let run = |block: &Block, x: Tensor<2>, _: &Pass| block.forward(x);
        self.blocks.iter().fold(x, |x, block| pass.segment(block, x, run))
    }
}

/// Pseudo-random values without a generator.
struct Waves(f64);

impl ParamMap for Waves {
    fn map<const D: usize>(&mut self, _: burn::module::ParamId, value: Tensor<D>) -> Tensor<D> {
        self.0 += 0.7;
        let shape = value.shape();
        relift(waves(shape.num_elements(), self.0, &value.device().inner()).reshape(shape), &value)
    }
}

fn waves(count: usize, phase: f64, device: &Device) -> Tensor<1> {
    let values: Vec<f32> = (0..count).map(|i| ((i as f64 * 1.7 + phase).sin() * 0.4) as f32).collect();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

/// Returns the device that `BURN_DEVICE` names, or the CPU by default.
fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex().autodiff(),
        Ok(_) => Device::default().autodiff(),
    }
}

fn input(rows: usize, device: &Device) -> Tensor<2> {
    waves(rows * WIDTH, 0.1, device).reshape([rows, WIDTH])
}

/// Returns a training pass with these strategies.
fn pass<M: Module + 'static>(model: &M, strategy: &impl Composition<M>) -> Pass {
    let device = device();
    let mut setup = Setup::new(model, &device);
    strategy.start(&mut setup).unwrap();
    setup.into_pass()
}

fn plain() -> Pass {
    Pass::train(&device())
}

/// Returns all gradients of a model, in the order of its parameters; `None` for parameters without one.
fn gradients<M: Module>(model: &M, loss: Tensor<1>) -> Vec<Option<Vec<f32>>> {
    struct Read(GradientsParams, Vec<Option<Vec<f32>>>);
    impl burn::module::ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
            let grad = self.0.get::<D>(param.id);
            self.1.push(grad.map(|grad| grad.into_data().iter().collect()));
        }
    }
    let mut read = Read(GradientsParams::from_grads(loss.backward(), model), Vec::new());
    model.visit(&mut read);
    read.1
}

fn every_recipe() -> Vec<Recompute> {
    vec![
        Recompute::every_block(),
        Recompute::every(2),
        Recompute::every_block().offloaded(),
        Recompute::paths(["blocks.1", "blocks.3"]),
        Recompute::within(1 << 30),
        Recompute::within(100_000),
    ]
}

#[test]
fn gradients_equal_the_plain_runs_to_the_bit() {
    let _alone = ALONE.lock();
    let model = Model::new(4, 0.0, &device());
    let x = input(5, &device());
    let loss = |pass: &Pass| model.forward(x.clone(), pass).square().sum();
    let expected = gradients(&model, loss(&plain()));
    assert!(expected.iter().all(|grad| grad.as_ref().is_some_and(|grad| grad.iter().any(|x| *x != 0.0))));
    for recipe in every_recipe() {
        let pass = pass(&model, &recipe);
        // The first pass measures for a budget, the second applies it.
        for _ in 0..2 {
            let found = gradients(&model, loss(&pass.drawing(pass.draws())));
            assert_eq!(found, expected, "{recipe:?}");
            pass.check().unwrap();
        }
    }
}

#[test]
fn the_gradient_of_the_input_arrives_too() {
    let _alone = ALONE.lock();
    let model = Model::new(3, 0.0, &device());
    let of_input = |pass: &Pass| {
        let x = input(5, &device()).require_grad();
        // The input of the first segment is not a leaf, and is also read outside the segment.
        let entering = x.clone() * 2.0;
        let y = model.forward(entering.clone(), pass) + entering;
        x.grad(&y.square().sum().backward()).unwrap().into_data()
    };
    let expected = of_input(&plain());
    let found = of_input(&pass(&model, &Recompute::every_block()));
    // The same three terms in another order: the segment's terms are summed first.
    for (found, expected) in found.iter::<f32>().zip(expected.iter::<f32>()) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} {expected}");
    }
}

#[test]
fn frozen_parameters_have_no_gradient_and_hinder_none() {
    let _alone = ALONE.lock();
    let mut model = Model::new(3, 0.0, &device());
    model.blocks[1] = model.blocks[1].clone().no_grad();
    model.blocks[2].wide = model.blocks[2].wide.clone().no_grad();
    let loss = |pass: &Pass| model.forward(input(5, &device()), pass).square().sum();
    let expected = gradients(&model, loss(&plain()));
    assert_eq!(expected.iter().filter(|grad| grad.is_none()).count(), 6);
    assert_eq!(gradients(&model, loss(&pass(&model, &Recompute::every_block()))), expected);

    // The first block has nothing to learn, and its input is only data.
    model.blocks[0] = model.blocks[0].clone().no_grad();
    let loss = |pass: &Pass| model.forward(input(5, &device()), pass).square().sum();
    let expected = gradients(&model, loss(&plain()));
    assert_eq!(gradients(&model, loss(&pass(&model, &Recompute::every_block()))), expected);
}

#[test]
fn tied_parameters_gather_the_gradients_of_all_their_places() {
    let _alone = ALONE.lock();
    let mut model = Model::new(3, 0.0, &device());
    // One block at two places, and one weight at two places in a block.
    model.blocks[2] = model.blocks[0].clone();
    let block = &mut model.blocks[1];
    block.wide = LinearConfig::new(WIDTH, WIDTH).init(&device());
    block.narrow = block.wide.clone();
    let loss = |pass: &Pass| {
        let y = model.forward(input(5, &device()), pass);
        // Also reads a parameter outside all segments.
        (y.square().sum() + model.blocks[0].wide.weight.val().square().sum()).reshape([1])
    };
    let expected = gradients(&model, loss(&plain()));
    let found = gradients(&model, loss(&pass(&model, &Recompute::every_block())));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let [found, expected] = [found, expected].map(|grad| grad.as_ref().expect("each has a gradient"));
        // The same sums, possibly in another order.
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{found} {expected}");
        }
    }
}

#[derive(Module, Debug)]
struct Decoder {
    block: Block,
    memory: Linear,
}

type Mixed = (Tensor<2>, (Tensor<3>, Option<Tensor<1, Int>>), Vec<Tensor<2, Bool>>);

#[test]
fn several_inputs_and_outputs_of_any_kind() {
    let _alone = ALONE.lock();
    let device = device();
    let decoder =
        Decoder { block: Block::new(0.0, &device), memory: LinearConfig::new(WIDTH, WIDTH).init(&device) };
    let decoder = map_params(decoder, &mut Waves(3.0));
    let run = |decoder: &Decoder, (x, (memory, places), masks): Mixed, _: &Pass| {
        let memory = decoder.memory.forward(memory.mean_dim(0).squeeze_dim::<2>(0));
        let picked = memory.clone().select(0, places.unwrap());
        let y = decoder.block.forward(x).mask_fill(masks[0].clone(), 0.0);
        (y.clone() + picked, vec![memory.clone()], Some(memory.sum()), y.greater_elem(0.0))
    };
    let all = |pass: &Pass, use_all: bool| {
        let x = input(5, &device).require_grad();
        let encoded = input(4 * 7, &device).reshape([4, 7, WIDTH]).require_grad();
        let places = Tensor::<1, Int>::from_data([0, 6, 2, 2, 1], &device);
        let mask = Tensor::<1, Int>::arange(0..5 * WIDTH as i64, &device).reshape([5, WIDTH]).equal_elem(7);
        let input = (x.clone(), (encoded.clone(), Some(places)), vec![mask]);
        let (a, b, c, d) = pass.segment(&decoder, input, run);
        let loss = (a.square() * d.float()).sum();
        let loss = match use_all {
            true => loss + b[0].clone().sin().sum() + c.unwrap().square(),
            false => loss,
        };
        let grads = loss.clone().backward();
        let read = |grad: Option<TensorData>| grad.unwrap();
        let of_inputs =
            [read(x.grad(&grads).map(|g| g.into_data())), read(encoded.grad(&grads).map(|g| g.into_data()))];
        let weights = [&decoder.memory, &decoder.block.wide]
            .map(|linear| linear.weight.grad(&grads).unwrap().into_data());
        (of_inputs, weights)
    };
    let recomputed = pass(&decoder, &Recompute::every_block());
    for use_all in [true, false] {
        assert_eq!(all(&recomputed, use_all), all(&plain(), use_all), "all outputs are read: {use_all}");
    }
    recomputed.check().unwrap();
}

#[test]
fn nested_segments() {
    let _alone = ALONE.lock();
    let model = Model::new(4, 0.0, &device());
    let whole = |pass: &Pass| {
        let run = |model: &Model, x: Tensor<2>, pass: &Pass| model.forward(x, pass);
        let y = pass.segment(&model, input(5, &device()), run);
        pass.segment(&model, y, run).square().sum()
    };
    let expected = gradients(&model, whole(&plain()));
    for recipe in [
        Recompute::every_block(),
        Recompute::every(2),
        Recompute::within(1000),
        Recompute::paths(["blocks.2"]),
    ] {
        let pass = pass(&model, &recipe);
        assert_eq!(gradients(&model, whole(&pass)), expected, "{recipe:?}");
        pass.check().unwrap();
    }
}

#[test]
fn under_burns_element_wise_scheme_and_in_half_precision() {
    let _alone = ALONE.lock();
    let model = Model::new(3, 0.0, &device());
    let device = device();
    let run = |amp: Option<Amp>, recompute: Option<Recompute>| {
        let mut setup = Setup::new(&model, &device);
        let is_half = amp.is_some();
        let mut stage = Composed::new().with(amp).with(recompute).start(&mut setup).unwrap();
        let pass = setup.into_pass();
        let master = stage.init_master(model.clone()).unwrap();
        let replica = stage.publish(master).unwrap();
        let x = input(5, pass.device());
        let x = if is_half { x.cast(FloatDType::F16) } else { x };
        let loss = replica.forward(x, &pass).cast(FloatDType::F32).square().sum();
        let grads = gradients(&replica, loss);
        pass.check().unwrap();
        grads
    };
    let plain = run(None, None);
    let half = run(Some(Amp::f16()), None);
    assert_eq!(run(None, Some(Recompute::elementwise())), plain);
    for recipe in [Recompute::every_block(), Recompute::elementwise()] {
        assert_eq!(run(Some(Amp::f16()), Some(recipe.clone())), half, "{recipe:?}");
    }
}

/// A model that was created on a device with Burn's scheme keeps it inside recomputed blocks.
#[test]
fn a_model_with_burns_scheme_of_its_own() {
    let _alone = ALONE.lock();
    let device = device().gradient_checkpointing();
    let model = Model::new(3, 0.0, &device);
    let mut setup = Setup::new(&model, &device);
    Recompute::every_block().start(&mut setup).unwrap();
    let loss = |pass: &Pass| model.forward(input(5, &device), pass).square().sum();
    let expected = gradients(&model, loss(&Pass::train(&device)));
    assert_eq!(gradients(&model, loss(&setup.into_pass())), expected);
}

/// A hand-made pass on a device without autodiff, with a model on a device with autodiff.
#[test]
fn a_pass_without_autodiff_runs_each_block_as_it_is() {
    let _alone = ALONE.lock();
    let model = Model::new(3, 0.0, &device());
    let without = device().inner();
    let expected = gradients(&model, model.forward(input(5, &without), &plain()).sum());
    for recipe in [Recompute::every_block(), Recompute::elementwise()] {
        let mut setup = Setup::new(&model, &without);
        recipe.start(&mut setup).unwrap();
        let pass = setup.into_pass();
        assert_eq!(gradients(&model, model.forward(input(5, &without), &pass).sum()), expected);
        pass.check().unwrap();
    }
}
