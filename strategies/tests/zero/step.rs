//! Parameters outside blocks stay gathered for the micro-batches of an optimizer step, and for nothing else.

use firebrick_world::Collective;

use super::*;
use firebrick_strategies::Stages;

/// A rank of stage 3 between two steps.
struct Between {
    world: Communicator,
    stages: Stages<Model>,
    master: Model,
    pass: Pass,
}

impl Between {
    fn new(world: Communicator) -> Self {
        let model = Model::new(&device());
        let device = device();
        let mut setup = Setup::new(&model, &device).among(world.clone());
        let mut stages = zero(3).start(&mut setup).unwrap();
        let pass = setup.into_pass();
        let master = stages.init_master(model).unwrap();
        Self { world, stages, master, pass }
    }

    /// Enters the model, and returns the elements that this takes from other ranks, and a weight outside blocks.
    fn enter(&self, pass: &Pass, replica: &Model) -> (u64, Vec<f32>) {
        let before = self.world.traffic().of(Collective::AllGather).elements;
        let (entered, _) = pass.enter(replica).unwrap();
        let weight = entered.entry.weight.val().into_data().iter::<f32>().collect();
        (self.world.traffic().of(Collective::AllGather).elements - before, weight)
    }
}

/// Runs two ranks.
fn on_two(run: impl Fn(Between) + Clone + Send + 'static) {
    let spawn = |world| {
        let run = run.clone();
        std::thread::spawn(move || run(Between::new(world)))
    };
    let ranks: Vec<_> = World::threads(2).join().unwrap().into_iter().map(spawn).collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

/// Halves of the entry's weight, and of the exit's, which is tied: each is padded to an even number of rows.
const ROOT: u64 = 2 * (WIDTH * WIDTH / 2) as u64;

#[test]
fn the_passes_of_a_step_gather_what_is_in_no_block_once() {
    on_two(|mut rank| {
        let replica = rank.stages.publish(rank.master.clone()).unwrap();
        let step = rank.pass.of_step();
        let (first, expected) = rank.enter(&step, &replica);
        assert_eq!((first, step.shared_bytes()), (ROOT, 2 * 4 * ROOT as usize));
        assert_eq!(
            rank.enter(&step.drawing(step.draws()).empty_batch(true), &replica),
            (0, expected.clone())
        );
        // Passes of nothing in common gather for themselves, and leave nothing.
        for other in [
            rank.pass.clone(),
            rank.pass.of_step(),
            step.of_step(),
            step.apart(),
            step.evaluating(FloatDType::F32),
        ] {
            assert_eq!(rank.enter(&other, &replica), (ROOT, expected.clone()));
            assert_eq!(rank.pass.shared_bytes(), 0);
        }
        assert_eq!(rank.enter(&step, &replica), (0, expected));
    });
}

#[test]
fn what_a_step_has_gathered_ends_with_it() {
    on_two(|mut rank| {
        let replica = rank.stages.publish(rank.master.clone()).unwrap();
        let step = rank.pass.of_step();
        for closes in [false, true] {
            let (entered, pass) = step.enter(&replica).unwrap();
            let grads = entered.loss(rows(0, 0, 0, 1).unwrap(), &pass).backward();
            pass.gradients(grads, &entered, closes).unwrap();
            assert_eq!(step.shared_bytes() == 0, closes);
        }
    });
}

/// A pass may outlive its step by mistake: it never reads parameters of before an update.
#[test]
fn a_published_master_is_gathered_again() {
    struct Twice;
    impl ParamMap for Twice {
        fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
            relift(value.clone().inner() * 2.0, &value)
        }
    }
    on_two(|mut rank| {
        let step = rank.pass.of_step();
        let replica = rank.stages.publish(rank.master.clone()).unwrap();
        let (_, before) = rank.enter(&step, &replica);
        let replica = rank.stages.publish(map_params(rank.master.clone(), &mut Twice)).unwrap();
        let (sent, after) = rank.enter(&step, &replica);
        assert_eq!((sent, after), (ROOT, before.iter().map(|weight| weight * 2.0).collect()));
    });
}

/// Stage 2 holds all parameters whole, so nothing is gathered for a pass, kept or out of date. Both run their blocks again.
#[test]
fn stage_3_is_stage_2_to_the_bit() {
    fn same<R: Composition<Model> + Clone>(count: usize, recipe: impl Fn(Zero) -> R) {
        let found = |stage| -> Vec<_> {
            let recipe = Composed::new().with(Recompute::every_block()).with(recipe(zero(stage)));
            ranks(count, recipe).into_iter().map(|found| found.unwrap().0).collect()
        };
        assert!(found(3) == found(2), "{count} ranks, {:?}", recipe(zero(3)));
    }
    let accumulate = || Accumulate(MICRO_BATCHES);
    for count in counts(&[1, 2, 3, 4]) {
        same(count, |zero| Composed::new().with(zero).with(accumulate()));
        same(count, |zero| Composed::new().with(zero.bucket_bytes(64)).with(accumulate()));
        for offload in [Offload::optimizer(), Offload::parameters()] {
            same(count, |zero| Composed::new().with(zero).with(offload.clone()).with(accumulate()));
        }
    }
}

/// Blocks of one matrix each.
#[derive(Module, Debug)]
struct Plain {
    blocks: Vec<Linear>,
}

/// The backward pass ends above frozen blocks that nothing trained comes before, and gathers none of them again.
#[test]
fn frozen_blocks_at_the_beginning_are_gathered_once_in_a_pass() {
    let run = |world: Communicator| {
        let device = device();
        let block = || -> Linear { LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device) };
        let model = Plain { blocks: vec![block().no_grad(), block(), block(), block()] };
        let mut setup = Setup::new(&model, &device).among(world.clone());
        let mut stages: Stages<Plain> = Zero::stage(3).replicate_below(1).start(&mut setup).unwrap();
        let pass = setup.into_pass();
        let master = stages.init_master(model).unwrap();
        let replica = stages.publish(master).unwrap();
        for _ in 0..3 {
            let before = world.traffic().of(Collective::AllGather).elements;
            let (entered, pass) = pass.enter(&replica).unwrap();
            let x = Tensor::<2>::ones([2, WIDTH], &device);
            let forward = |block: &Linear, x: Tensor<2>, _: &Pass| block.forward(x);
            let y = entered.blocks.iter().fold(x, |x, block| pass.segment(block, x, forward));
            pass.gradients(y.sum().backward(), &entered, true).unwrap();
            drop((entered, pass));
            // All blocks, and two again: the last one stays.
            let gathered = world.traffic().of(Collective::AllGather).elements - before;
            assert_eq!(gathered, (4 + 2) * (WIDTH * WIDTH / 2) as u64);
        }
    };
    let ranks = World::threads(2).join().unwrap().into_iter();
    let ranks: Vec<_> = ranks.map(|world| std::thread::spawn(move || run(world))).collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}
