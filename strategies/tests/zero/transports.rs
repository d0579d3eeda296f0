//! The ways that buckets travel: through host memory or between devices, in buckets of any size.

use std::sync::{Arc, Barrier, Mutex};

use burn::tensor::Tensor;
use firebrick_world::{Communicator, DeviceSums, Kind, Traffic, World};

use super::*;

/// What each rank has at the end, and what it exchanged.
type Found = Vec<((Vec<f32>, f32), Traffic)>;

/// Runs the ranks, whose devices may sum by themselves.
fn counted<R>(count: usize, sums: Option<DeviceSums>, recipe: R) -> Found
where
    R: Composition<Model> + Clone,
{
    let spawn = |world: Communicator| {
        let (recipe, world) = (recipe.clone(), world.summing(sums.clone()));
        std::thread::spawn(move || rank_counted(world, recipe, Communicator::traffic).unwrap())
    };
    let threads: Vec<_> = World::threads(count).join().unwrap().into_iter().map(spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Stands in for NCCL: sums the ranks' tensors in rank order.
fn by_hand(ranks: usize) -> DeviceSums {
    let (brought, met) = (Arc::new(Mutex::new(vec![None; ranks])), Arc::new(Barrier::new(ranks)));
    let sum = move |rank: usize, part: Tensor<1>| {
        brought.lock().unwrap()[rank] = Some(part);
        met.wait();
        let parts: Vec<Tensor<1>> = brought.lock().unwrap().iter().flatten().cloned().collect();
        met.wait();
        parts.into_iter().reduce(|sum, part| sum + part).unwrap()
    };
    DeviceSums::new(vec![device().inner(); ranks], sum)
}

fn recipe(zero: Zero, stage: u8) -> impl Composition<Model> + Clone {
    let placed = |is_here: bool| is_here.then(|| zero.clone());
    Stack::new(Stack::new(placed(stage >= 2), Accumulate(MICRO_BATCHES)), placed(stage < 2))
}

/// Small buckets are more calls; neither a bit of the result nor an element on the way differs.
#[test]
fn buckets_of_any_size_give_the_same_bits() {
    for (stage, count) in (0..=3).flat_map(|stage| counts(&[2, 3]).map(move |count| (stage, count))) {
        for wire in [None, Some(FloatDType::F16)] {
            let zero = || match wire {
                None => zero(stage),
                Some(dtype) => zero(stage).summing_in(dtype),
            };
            let expected = counted(count, None, recipe(zero(), stage));
            for bytes in [1, 300] {
                let found = counted(count, None, recipe(zero().bucket_bytes(bytes), stage));
                for ((found, small), (expected, large)) in found.into_iter().zip(&expected) {
                    let name = format!("stage {stage}, {count} ranks, {wire:?}, {bytes} bytes");
                    assert_eq!(&found, expected, "{name}");
                    for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather] {
                        let (small, large) = (small.of(kind), large.of(kind));
                        assert_eq!((small.elements, small.sent), (large.elements, large.sent), "{name}");
                        let is_more = small.calls > large.calls || large.calls == 0;
                        assert!(is_more || kind == Kind::AllReduce, "{name}: {kind} {small:?} {large:?}");
                    }
                }
            }
        }
    }
}

/// Where the devices sum, all stages compute what they compute through host memory, and send what a ring of sums sends:
/// a gather is a sum with zeros, of twice the elements, and so is the sum of which each rank takes a shard.
#[test]
fn sums_between_devices_replace_every_collective() {
    for (stage, count) in (0..=3).flat_map(|stage| counts(&[2, 3]).map(move |count| (stage, count))) {
        for bytes in [1, 1 << 20] {
            let recipe = || recipe(zero(stage).bucket_bytes(bytes), stage);
            let through_host = counted(count, None, recipe());
            let between_devices = counted(count, Some(by_hand(count)), recipe());
            for ((found, _), (expected, _)) in between_devices.iter().zip(&through_host) {
                assert_eq!(found, expected, "stage {stage}, {count} ranks, {bytes} bytes");
            }
            // A rank without rows adds zeros to the devices' sums, and sends nothing through host memory.
            if count > 2 {
                continue;
            }
            for kind in [Kind::ReduceScatter, Kind::AllGather] {
                let sent =
                    |found: &Found| found.iter().map(|(_, moved)| moved.of(kind).elements).sum::<u64>();
                let (twice, once) = (sent(&between_devices), sent(&through_host));
                assert_eq!(twice, 2 * once, "stage {stage}, {kind}");
            }
        }
    }
}
