//! The ways that buckets travel: through host memory or between devices, in buckets of any size.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use firebrick_world::{
    Collective, Communicator, DeviceCollectives, Traffic, World, host_device, moved, reads,
};

use super::*;

/// What each rank has at the end, and what it exchanged.
type Found = Vec<((Vec<f32>, f32), Traffic)>;

/// Runs the ranks, whose devices may exchange by themselves.
fn counted<R>(count: usize, between: Option<DeviceCollectives>, recipe: R) -> Found
where
    R: Composition<Model> + Clone,
{
    let spawn = |world: Communicator| {
        let (recipe, world) = (recipe.clone(), world.between_devices(between.clone()));
        std::thread::spawn(move || rank_counted(world, recipe, Communicator::traffic).unwrap())
    };
    let threads: Vec<_> = World::threads(count).join().unwrap().into_iter().map(spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Stands in for NCCL: exchanges the ranks' tensors, and sums them in rank order.
pub fn by_hand(ranks: usize) -> DeviceCollectives {
    by_hand_after(ranks, |_| ())
}

/// The same, and each rank waits before each of its collectives.
fn by_hand_after(ranks: usize, wait: impl Fn(usize) + Send + Sync + 'static) -> DeviceCollectives {
    let (brought, met) = (Arc::new(Mutex::new(vec![None; ranks])), Arc::new(Barrier::new(ranks)));
    let collective = move |rank: usize, kind: Collective, part: Tensor<1>| {
        wait(rank);
        let chunk = part.dims()[0] / ranks;
        brought.lock().unwrap()[rank] = Some(part);
        met.wait();
        let parts: Vec<Tensor<1>> = brought.lock().unwrap().iter().flatten().cloned().collect();
        met.wait();
        let sum = |parts: Vec<Tensor<1>>| parts.into_iter().reduce(|sum, part| sum + part).unwrap();
        match kind {
            Collective::AllGather => Tensor::cat(parts, 0),
            Collective::ReduceScatter => sum(parts).narrow(0, rank * chunk, chunk),
            _ => sum(parts),
        }
    };
    DeviceCollectives::new(vec![device().inner(); ranks], collective)
}

fn recipe(zero: Zero) -> impl Composition<Model> + Clone {
    Composed::new().with(zero).with(Accumulate(MICRO_BATCHES))
}

/// Small buckets are more calls; neither a bit of the result nor an element on the way differs.
#[test]
fn buckets_of_any_size_give_the_same_bits() {
    for (stage, count) in stages(0).flat_map(|stage| counts(&[2, 3]).map(move |count| (stage, count))) {
        for wire in [None, Some(FloatDType::F16)] {
            let zero = || match wire {
                None => zero(stage),
                Some(dtype) => zero(stage).summing_in(dtype),
            };
            let expected = counted(count, None, recipe(zero()));
            for bytes in [1, 300] {
                let found = counted(count, None, recipe(zero().bucket_bytes(bytes)));
                for ((found, small), (expected, large)) in found.into_iter().zip(&expected) {
                    let name = format!("stage {stage}, {count} ranks, {wire:?}, {bytes} bytes");
                    assert_eq!(&found, expected, "{name}");
                    for kind in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
                        let (small, large) = (small.of(kind), large.of(kind));
                        assert_eq!((small.elements, small.sent), (large.elements, large.sent), "{name}");
                        let is_more = small.calls > large.calls || large.calls == 0;
                        assert!(
                            is_more || kind == Collective::AllReduce,
                            "{name}: {kind} {small:?} {large:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Where the devices exchange, all stages compute what they compute through host memory, and send as many elements.
#[test]
fn collectives_between_devices_replace_those_of_the_host() {
    for (stage, count) in stages(0).flat_map(|stage| counts(&[3, 2]).map(move |count| (stage, count))) {
        for bytes in [1, 1 << 20] {
            let recipe = || recipe(zero(stage).bucket_bytes(bytes));
            let through_host = counted(count, None, recipe());
            let between_devices = counted(count, Some(by_hand(count)), recipe());
            for ((found, _), (expected, _)) in between_devices.iter().zip(&through_host) {
                assert_eq!(found, expected, "stage {stage}, {count} ranks, {bytes} bytes");
            }
            // A rank without rows adds zeros to the devices' sums, and sends nothing through host memory.
            if count > 2 {
                continue;
            }
            for kind in [Collective::ReduceScatter, Collective::AllGather] {
                let sent =
                    |found: &Found| found.iter().map(|(_, moved)| moved.of(kind).elements).sum::<u64>();
                assert_eq!(sent(&between_devices), sent(&through_host), "stage {stage}, {kind}");
            }
        }
    }
}

/// A rank's device may have its result, and go on, while another one has yet to read the part that the first one gave.
#[test]
fn what_a_rank_gives_to_a_collective_does_not_change() {
    let (given, step) = (Mutex::new(None), Barrier::new(2));
    let collective = move |rank: usize, _: Collective, own: Tensor<1>| {
        let own = match rank {
            0 => given.lock().unwrap().insert(own).clone(),
            _ => own,
        };
        step.wait();
        // The second rank's device has this in its queue,
        let sum = (rank == 1).then(|| given.lock().unwrap().take().unwrap() + own.clone());
        step.wait();
        // when the first rank's computes from the same part.
        let sum = sum.unwrap_or_else(|| own + 1.0);
        if rank == 0 {
            let _ = sum.to_data();
        }
        step.wait();
        sum
    };
    let between = DeviceCollectives::new(vec![device().inner(); 2], collective);
    let spawn = |rank: Communicator| {
        let rank = rank.between_devices(Some(between.clone()));
        let part = || Tensor::<1>::from_data([0.5f32; 64].as_slice(), &device().inner()) * 2.0;
        // The first device does not always write in place.
        std::thread::spawn(move || [(); 20].map(|()| rank.all_reduce(part()).unwrap().into_data()))
    };
    let threads: Vec<_> = World::threads(2).join().unwrap().into_iter().map(spawn).collect();
    for sums in threads.into_iter().map(|thread| thread.join().unwrap()) {
        assert!(sums.iter().all(|sum| *sum == TensorData::from([2.0f32; 64])), "{sums:?}");
    }
}

/// Runs a forward and a backward pass on two ranks, under `then` as well. Returns what `look` returns on each.
fn passes<T: Send + 'static>(
    between: DeviceCollectives,
    then: Option<Recompute>,
    ran: [Arc<AtomicUsize>; 2],
    look: impl Fn(&Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let spawn = |(world, ran): (Communicator, Arc<AtomicUsize>)| {
        let (world, then, look) = (world.between_devices(Some(between.clone())), then.clone(), look.clone());
        std::thread::spawn(move || {
            let device = device();
            let model = Model::new(&device);
            let mut setup = Setup::new(&model, &device).among(world.clone());
            let mut stage = Composed::new().with(zero(2)).with(then).start(&mut setup).unwrap();
            let pass = setup.into_pass();
            let master = stage.init_master(model).unwrap();
            let (entered, pass) = pass.enter(&stage.publish(master).unwrap()).unwrap();
            drop(entered.loss_counting(rows(0, 0, 0, 1).unwrap(), &pass, ran).backward());
            drop((entered, pass));
            look(&world)
        })
    };
    let ranks = World::threads(2).join().unwrap();
    let threads: Vec<_> = std::iter::zip(ranks, ran).map(spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// What a pass has begun ends with it, also if nobody takes its gradients, as in a trial.
#[test]
fn the_sums_of_a_pass_end_with_it() {
    let slow = by_hand_after(2, |_| std::thread::sleep(Duration::from_millis(50)));
    let found = passes(slow, None, Default::default(), |world| {
        let sums = || world.traffic().of(Collective::ReduceScatter);
        let ended = sums();
        world.barrier().unwrap();
        (ended, sums())
    });
    for (ended, later) in found {
        assert_eq!((ended, ended.calls), (later, 3));
        assert!(ended.elements > 0);
    }
}

/// A block's gradients are summed while the backward pass goes through the block before it.
#[test]
fn sums_overlap_the_backward_pass() {
    // Blocks that have run on each rank: three forward, and three again in the backward pass.
    let ran: [Arc<AtomicUsize>; 2] = Default::default();
    let (runs, sums) = (ran.clone(), [const { AtomicUsize::new(0) }; 2]);
    let meets_the_next = move |rank: usize| {
        if runs[rank].load(SeqCst) == 0 {
            return; // The parameters are gathered before the pass.
        }
        // A block has two sums: of what is sharded, and of what is not.
        let block = sums[rank].fetch_add(1, SeqCst) / 2;
        let needed = (3 + block + 2).min(6);
        let started = Instant::now();
        while runs[rank].load(SeqCst) < needed {
            assert!(started.elapsed() < Duration::from_secs(60), "the pass waits for the sum");
            std::thread::yield_now();
        }
    };
    let again = Some(Recompute::every_block());
    let found = passes(by_hand_after(2, meets_the_next), again, ran.clone(), Communicator::failure);
    assert!(found.iter().all(Option::is_none), "{found:?}");
    assert!(ran.iter().all(|ran| ran.load(SeqCst) == 6));
}

/// A bucket is read with one wait, and is one copy for each dtype. The CPU lends each tensor's own memory instead.
#[test]
fn a_bucket_is_one_copy_for_each_dtype() {
    let device = device().inner();
    let tensor = |elements: usize, dtype: FloatDType| {
        Tensor::<1>::from_data(waves(elements, elements as f64).as_slice(), &device).cast(dtype)
    };
    let (single, half) = (FloatDType::F32, FloatDType::F16);
    let all = [(5, single), (300, single), (7, half), (1, single), (64, half)];
    let tensors = all.map(|(elements, dtype)| tensor(elements, dtype)).to_vec();
    let expected: Vec<_> = tensors.iter().map(|tensor| tensor.to_data()).collect();
    let before = reads();
    let on_host = moved(tensors, &host_device()).unwrap();
    assert_eq!(reads() - before, if is_cpu() { 5 } else { 1 });
    let back = moved(on_host.clone(), &device).unwrap();
    for ((on_host, back), expected) in on_host.into_iter().zip(back).zip(expected) {
        assert_eq!(on_host.into_data(), expected);
        assert_eq!(back.into_data(), expected);
    }
}
