//! Tests that only the first rank gathers the whole model, in host memory.

use firebrick_world::is_host;

use firebrick_world::Collective;

use super::*;

/// Returns whether each parameter of a model is on the host.
fn are_on_host(model: &Model) -> Vec<bool> {
    struct Places(Vec<bool>);
    impl ModuleVisitor for Places {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(is_host(&param.val().device()));
        }
    }
    let mut places = Places(Vec::new());
    model.visit(&mut places);
    places.0
}

#[test]
fn no_device_and_no_other_rank_holds_the_whole() {
    const RANKS: usize = 3;
    for stage in [1, 3] {
        let rank = move |world: Communicator| {
            let model = Model::new(&device());
            let device = device();
            let mut setup = Setup::new(&model, &device).among(world.clone());
            let mut zero = Zero::stage(stage).replicate_below(1).start(&mut setup).unwrap();
            let master = zero.init_master(model).unwrap();
            let moved =
                || [Collective::AllGather, Collective::Gather].map(|kind| world.traffic().of(kind).elements);
            let before = moved();
            let whole = zero.gather_full(master.clone(), Some(0)).unwrap();
            let moved = std::array::from_fn(|at| moved()[at] - before[at]);
            // The ranks' own shards stay on their devices.
            assert_eq!(are_on_host(&master), vec![is_host(&device); are_on_host(&master).len()]);
            (whole.map(|whole| (values(&whole), are_on_host(&whole))), moved)
        };
        let threads = World::threads(RANKS).join().unwrap().into_iter();
        let threads: Vec<_> = threads.map(|world| std::thread::spawn(move || rank(world))).collect();
        let mut found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let (whole, moved): (_, [u64; 2]) = found.remove(0);
        let (numbers, on_host) = whole.expect("the root has it");
        assert_eq!(numbers, values(&Model::new(&device())), "stage {stage}");
        // Stage 1 does not shard frozen parameters, so they stay on their device.
        assert!(on_host.iter().all(|on_host| *on_host || stage == 1), "stage {stage}: {on_host:?}");
        assert_eq!(moved, [0, 0], "the root receives");
        for (whole, [gathered, sent]) in found {
            assert!(whole.is_none() && gathered == 0, "stage {stage}");
            // Its shard of each parameter, a tied one once, with padding for rows that three ranks do not divide.
            let linear = WIDTH * (WIDTH + 1);
            let distinct = numbers.len() - 3 * linear - if stage == 1 { 3 * linear } else { 0 };
            let part = distinct / RANKS..distinct / RANKS * 13 / 10;
            assert!(part.contains(&(sent as usize)), "stage {stage}: {sent} of {part:?}");
        }
    }
}

/// A rank may have values that the other ranks draw. All ranks distribute parameters in the order in which they are read.
#[test]
fn parameters_that_one_rank_already_has_are_distributed_with_the_others() {
    let rank = |world: Communicator| {
        let linear = || -> Linear { LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device()) };
        let (own, model) = (device(), vec![linear(), linear()]);
        let numbers = |linear: &Linear| linear.weight.val().into_data().try_to_vec::<f32>().unwrap();
        let known = (world.rank() == 0).then(|| numbers(&model[1]));
        let mut setup = Setup::new(&model, &own).among(world);
        let mut zero = Zero::stage(3).replicate_below(1).start(&mut setup).unwrap();
        setup.offloads_parameters_to_disk().store(true, Ordering::Relaxed);
        let master = zero.init_master(model.clone()).unwrap();
        assert!(master.iter().all(|linear| !linear.weight.is_initialized()));
        let shards = [0, 1].map(|at| numbers(&master[at]));
        setup.into_pass().check().unwrap();
        (known, shards)
    };
    let ranks = World::threads(2).deadline(std::time::Duration::from_secs(20)).join().unwrap().into_iter();
    let threads: Vec<_> = ranks.map(|world| std::thread::spawn(move || rank(world))).collect();
    let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let whole = |at: usize| found.iter().flat_map(|(_, shards)| shards[at].clone()).collect::<Vec<_>>();
    assert_eq!(whole(1), *found[0].0.as_ref().unwrap());
    assert_eq!(whole(0).len(), WIDTH * WIDTH);
}
