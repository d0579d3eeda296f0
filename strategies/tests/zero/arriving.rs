//! New parameters arrive while the next pass computes: each is waited for when it is read.

use std::sync::Barrier;

use super::*;
use firebrick_strategies::{Stages, cast_params, each_distinct_param};

/// Two layers of which a rank reads one.
#[derive(Module, Debug)]
struct Fork {
    left: Linear,
    right: Linear,
}

impl Fork {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(device);
        map_params(Self { left: linear(), right: linear() }, &mut Waves(0.0))
    }
}

/// Starts a rank, and returns its stages, its pass and its master.
fn started<M: Module + 'static>(
    world: Communicator,
    recipe: impl Composition<M>,
    model: M,
) -> (Stages<M>, Pass, M) {
    let device = device();
    let mut setup = Setup::new(&model, &device).among(world);
    let mut stages = recipe.start(&mut setup).unwrap();
    let pass = setup.into_pass();
    let master = stages.init_master(model).unwrap();
    (stages, pass, master)
}

/// Runs two ranks.
fn on_two<T: Send + 'static>(run: impl Fn(Communicator) -> T + Clone + Send + 'static) -> Vec<T> {
    let spawn = |world| {
        let run = run.clone();
        std::thread::spawn(move || run(world))
    };
    let ranks: Vec<_> = World::threads(2).join().unwrap().into_iter().map(spawn).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Returns the parameters that have no value yet.
fn awaited(model: &Model) -> Vec<ParamId> {
    let mut awaited = Vec::new();
    each_distinct_param(model, |param| {
        if !param.is_initialized() {
            awaited.push(param.id());
        }
    });
    awaited
}

#[test]
fn each_parameter_arrives_when_it_is_read() {
    for stage in [1, 2] {
        on_two(move |world| {
            let model = Model::new(&device());
            let expected = values(&model);
            let (mut stages, _, master) = started(world, zero(stage), model);
            let replica = stages.publish(master.clone()).unwrap();
            let before = awaited(&replica);
            assert!(before.contains(&replica.exit.weight.id), "stage {stage}: {before:?}");

            // A bucket arrives at once, but only what is read has a value. A tied parameter is one leaf at all of its places.
            let x = Tensor::<2>::ones([1, WIDTH], &device());
            let y = replica.exit.forward(replica.blocks[1].tied.forward(x));
            assert!(replica.blocks[0].tied.weight.is_initialized());
            assert_eq!(awaited(&replica).len(), before.len() - 1);
            let grads = y.sum().backward();
            let [one, other] = [&replica.exit, &replica.blocks[0].tied].map(|tied| tied.weight.grad(&grads));
            assert_eq!(one.unwrap().into_data(), other.unwrap().into_data());

            let master = stages.alias_master(master, &replica);
            assert_eq!(values(&replica), expected, "stage {stage}");
            let master = stages.unalias_master(master);
            let whole = stages.gather_full(master, None).unwrap();
            assert_eq!(values(&whole.unwrap()), expected, "stage {stage}");
            assert!(!replica.blocks[0].frozen.weight.is_require_grad());
        });
    }
}

#[test]
fn parameters_that_are_gathered_before_a_cast_are_cast_when_they_are_read() {
    on_two(|world| {
        let model = Model::new(&device());
        let (mut stages, _, master) = started(world, Composed::new().with(half()).with(zero(1)), model);
        let replica = stages.publish(master.clone()).unwrap();
        assert!(awaited(&replica).contains(&replica.exit.weight.id));
        let tied = replica.blocks[1].tied.weight.val();
        assert_eq!((tied.dtype().size(), tied.is_require_grad()), (2, true));
        assert!(replica.exit.weight.is_initialized() && awaited(&replica).contains(&replica.entry.weight.id));
        let master = stages.alias_master(master, &replica);
        let whole = stages.gather_full(master, None).unwrap().unwrap();
        let rounded = cast_params(whole, |_| FloatDType::from(tied.dtype()));
        assert_eq!(values(&replica), values(&rounded));
        assert!(!replica.blocks[0].frozen.weight.is_require_grad());
    });
}

#[test]
fn another_precision_is_evaluated_from_the_whole_master() {
    on_two(|world| {
        let amp = half().evaluate_in(FloatDType::F32);
        let (mut stages, _, master) =
            started(world, Composed::new().with(amp).with(zero(1)), Model::new(&device()));
        let replica = stages.publish(master.clone()).unwrap();
        let master = stages.alias_master(master, &replica);
        let evaluated = stages.evaluator(&master, replica).unwrap();
        assert_eq!(evaluated.exit.weight.val().dtype(), FloatDType::F32.into());
        let whole = stages.gather_full(master.clone(), None).unwrap().unwrap();
        assert_eq!(values(&evaluated), values(&whole));
        // Nothing of the evaluation is left on the way.
        let kept = stages.alias_master(master.clone(), &evaluated);
        assert_eq!(values(&kept), values(&master));
    });
}

/// Burn's lazy parameters share more with their clones than a value.
#[test]
fn a_clone_that_is_frozen_leaves_the_parameter_alone() {
    for amp in [None, Some(half())] {
        on_two(move |world| {
            let recipe = Composed::new().with(amp.clone()).with(zero(1));
            let (mut stages, pass, master) = started(world, recipe, Fork::new(&device()));
            let replica = stages.publish(master.clone()).unwrap();
            let (entered, _) = pass.enter(&replica).unwrap();
            let frozen = entered.left.clone().no_grad();
            let dtype = FloatDType::from(entered.left.weight.val().dtype());
            let x = Tensor::<2>::ones([1, WIDTH], &device()).cast(dtype);
            let y = frozen.forward(x.clone()) * 2.0 + entered.left.forward(x);
            let grad = entered.left.weight.grad(&y.sum().backward()).expect("the parameter is trained");
            assert!(grad.into_data().iter::<f32>().all(|of| of == 1.0));
            drop(stages.alias_master(master, &replica));
        });
    }
}

#[test]
fn a_parameter_of_a_block_whose_clone_is_frozen_on_the_way_is_an_error_of_the_pass() {
    for error in on_two(|world| {
        let (mut stages, pass, master) = started(world, zero(1), Model::new(&device()));
        let run = |stages: &mut Stages<Model>, freezes: bool| {
            let replica = stages.publish(master.clone()).unwrap();
            let (entered, pass) = pass.enter(&replica).unwrap();
            if freezes {
                assert!(awaited(&entered).contains(&entered.blocks[1].wide.weight.id));
                drop(entered.blocks[1].wide.clone().no_grad());
            }
            drop(entered.loss(rows(0, 0, 0, 1).unwrap(), &pass).backward());
            drop(stages.alias_master(master.clone(), &replica));
            pass.check().err().map(|error| error.to_string())
        };
        assert_eq!(run(&mut stages, false), None);
        run(&mut stages, true).expect("an error")
    }) {
        assert!(error.contains("a clone of `blocks.1.wide.weight` was set"), "{error}");
    }
}

#[test]
fn a_parameter_that_one_rank_alone_reads_is_summed_on_all() {
    let run = |world: Communicator| {
        let rank = world.rank();
        let (mut stages, pass, master) = started(world, zero(2), Fork::new(&device()));
        let replica = stages.publish(master.clone()).unwrap();
        let (entered, pass) = pass.enter(&replica).unwrap();
        let x = Tensor::<2>::ones([1, WIDTH], &device());
        let read = if rank == 0 { &entered.left } else { &entered.right };
        let grads = (read.forward(x).sum() * (rank + 1) as f64).backward();
        let grads = pass.gradients(grads, &entered, true).unwrap();
        let Outcome::Apply(grads) = stages.collect(&master, grads).unwrap() else { panic!("passed on") };
        let grads = grads.into_params();
        [&master.left, &master.right].map(|layer| grads.get::<2>(layer.weight.id).unwrap().into_data())
    };
    let half = |value: f32| Tensor::<2>::full([WIDTH / 2, WIDTH], value, &device().inner()).into_data();
    for found in on_two(run) {
        assert_eq!(found, [half(1.0), half(2.0)]);
    }
}

#[test]
fn a_rank_that_is_lost_on_the_way_is_an_error_of_the_pass() {
    let published = Arc::new(Barrier::new(2));
    let found = on_two(move |world| {
        let (mut stages, pass, master) = started(world.clone(), zero(2), Model::new(&device()));
        if world.rank() == 1 {
            published.wait();
            world.fail("it has had enough");
            return None;
        }
        let replica = stages.publish(master.clone()).unwrap();
        published.wait();
        assert!(replica.exit.weight.val().into_data().iter::<f32>().all(|value| value == 0.0));
        drop(stages.alias_master(master, &replica));
        pass.check().err()
    });
    let error = found.into_iter().flatten().next().expect("an error of rank 0").to_string();
    assert!(error.contains("rank 1") && error.contains("it has had enough"), "{error}");
}
