//! Tests of collectives between devices.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use burn::tensor::Device;

use super::*;
use crate::testing::{self, by_hand, exchange_by_hand, run_between};
use crate::{PartShape, World};

fn begun(
    rank: &Communicator,
    parts: Vec<Option<Tensor<1>>>,
    like: &[PartShape],
) -> Result<Vec<Option<Tensor<1>>>, WorldError> {
    rank.begin_all_reduce("the test", parts, like, &testing::device())?.wait()
}

fn numbers(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn parts_that_some_ranks_lack_are_summed() {
    let like = [3, 2, 1].map(|elements| PartShape::flat(elements, DType::F32));
    let sums = run_between(World::threads(3), Some(by_hand(3)), |rank| {
        let part = |values: &[f32]| Some(Tensor::<1>::from_data(values, &testing::device()));
        let number = rank.rank() as f32;
        let second = if rank.rank() == 1 { part(&[8.0, 9.0]) } else { None };
        let sums = begun(&rank, vec![part(&[number, 1.0, -number]), second, None], &like)?;
        let sums: Vec<_> = sums.into_iter().map(|sum| sum.map(numbers)).collect();
        Ok((sums, rank.traffic().of(Collective::AllReduce)))
    });
    for sum in sums {
        let (sums, moved) = sum.unwrap();
        assert_eq!(sums, [Some(vec![3.0, 3.0, -3.0]), Some(vec![8.0, 9.0]), None]);
        // A ring sends 2(N-1)/N of the five elements, rounded up.
        assert_eq!((moved.calls, moved.elements, moved.sent, moved.received), (1, 7, 28, 28));
    }
}

/// The shards of parameters that are offloaded wait in host memory, and the device exchanges its own. On the CPU both are the
/// same memory: `BURN_DEVICE` names another device.
#[test]
fn shards_in_host_memory_are_moved_to_the_device_that_gathers() {
    let own = testing::device();
    let exchanged = by_hand(2);
    let gathered = run_between(World::threads(2), Some(exchanged), |rank| {
        let shard = |of: f32| Tensor::<1>::from_data([of + rank.rank() as f32], &Device::flex());
        let gathering = rank.begin_all_gather("the test", vec![shard(1.0), shard(5.0)], &own)?;
        let whole = gathering.wait()?;
        assert!(whole.iter().all(|part| part.device() == own));
        Ok(whole.into_iter().map(numbers).collect::<Vec<_>>())
    });
    gathered.into_iter().for_each(|whole| assert_eq!(whole.unwrap(), [[1.0, 2.0], [5.0, 6.0]]));
}

/// Gathers that begin together take one thread of a rank, however many they are.
#[test]
fn gathers_that_begin_together_share_a_thread() {
    const GATHERS: usize = 40;
    let (exchange, all_begun) = (exchange_by_hand(2), Arc::new(Barrier::new(4)));
    let (seen, waits) = (Arc::new(Mutex::new(Vec::new())), all_begun.clone());
    let seen_by = seen.clone();
    let collectives = DeviceCollectives::new(vec![testing::device(); 2], move |rank, kind, part| {
        let is_first = {
            let mut seen = seen_by.lock().unwrap();
            seen.push((rank, thread::current().id()));
            seen.iter().filter(|(of, _)| *of == rank).count() == 1
        };
        if is_first {
            waits.wait();
        }
        exchange(rank, kind, part)
    });
    let gathered = run_between(World::threads(2), Some(collectives), |rank| {
        let begin = |at: usize| {
            let shard = Tensor::<1>::from_data([at as f32], &testing::device());
            rank.begin_all_gather("the test", vec![shard], &testing::device())
        };
        let begun: Vec<_> = (0..GATHERS).map(begin).collect::<Result<_, _>>()?;
        all_begun.wait();
        begun
            .into_iter()
            .map(|gathering| Ok(numbers(gathering.wait()?.remove(0))))
            .collect::<Result<Vec<_>, _>>()
    });
    let expected: Vec<_> = (0..GATHERS).map(|at| vec![at as f32; 2]).collect();
    gathered.into_iter().for_each(|of_rank| assert_eq!(of_rank.unwrap(), expected));
    let mut seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2 * GATHERS);
    seen.sort_by_key(|(rank, _)| *rank);
    seen.dedup();
    assert_eq!(seen.len(), 2, "a thread for each rank");
}

#[test]
fn halves_are_summed_in_f32_and_rounded_once() {
    let like = [PartShape::flat(1, DType::F16)];
    let sums = run_between(World::threads(3), Some(by_hand(3)), |rank| {
        // 2049 is not an f16: rounding at every step would give 2048.
        let mine = if rank.rank() == 0 { 2048.0 } else { 1.0 };
        let part = Tensor::<1>::from_data([mine], (&testing::device(), DType::F16));
        let sum = begun(&rank, vec![Some(part)], &like)?.remove(0).unwrap();
        assert_eq!(sum.dtype(), DType::F16);
        Ok(numbers(sum))
    });
    sums.into_iter().for_each(|sum| assert_eq!(sum.unwrap(), [2050.0]));
    assert!(!DeviceCollectives::takes(&[PartShape::flat(1, DType::F64)]));
}

/// Each rank's chunk of a sum, and the shards of all, keep every bit, whatever their dtypes.
#[test]
fn chunks_and_gathered_shards_keep_their_bits() {
    let odd = [f32::from_bits(0x7FC1_2345), -0.0, f32::MIN_POSITIVE, 3.0];
    let found = run_between(World::threads(2), Some(by_hand(2)), |rank| {
        let device = testing::device();
        let part = Tensor::<1>::from_data([1.0, 2.0, 3.0, 4.0], &device);
        let like = [PartShape::flat(4, DType::F32)];
        let chunk = rank.begin_reduce_scatter("", vec![Some(part)], &like, &device)?.wait()?;
        let sign = if rank.rank() == 0 { 1.0 } else { -1.0 };
        let half = Tensor::<1>::from_data([sign, 0.5], (&device, DType::F16));
        let shards = vec![Tensor::from_data(odd, &device), half, Tensor::from_data([sign], &device)];
        let all = rank.begin_all_gather("", shards, &device)?.wait()?;
        assert_eq!(all[1].dtype(), DType::F16);
        let bits = |tensor: Tensor<1>| numbers(tensor).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let all: Vec<_> = all.into_iter().map(bits).collect();
        // These collectives do not know it: it goes through the host.
        let number = vec![Tensor::<1>::from_data([sign], &device)];
        let before = rank.begin_shift("", number, &device)?.wait()?.remove(0);
        assert_eq!(numbers(before), [-sign]);
        Ok((numbers(chunk.into_iter().flatten().next().unwrap()), all, rank.traffic()))
    });
    for (rank, found) in found.into_iter().enumerate() {
        let (chunk, all, traffic) = found.unwrap();
        assert_eq!(chunk, [[2.0, 4.0], [6.0, 8.0]][rank]);
        let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(all, [bits(&[odd, odd].concat()), bits(&[1.0, 0.5, -1.0, 0.5]), bits(&[1.0, -1.0])]);
        // The chunk of the other rank, and the shards to it.
        assert_eq!(traffic.of(Collective::ReduceScatter).elements, 2);
        assert_eq!(traffic.of(Collective::AllGather).elements, 4 + 2 + 1);
        assert_eq!(traffic.of(Collective::Shift).elements, 1);
    }
}

#[test]
fn tensors_are_summed_on_their_devices() {
    let sums = run_between(World::threads(2), Some(by_hand(2)), |rank| {
        let mine = Tensor::<2>::full([2, 3], 1.0 + rank.rank() as f32, &testing::device());
        Ok(rank.all_reduce(mine)?.into_data())
    });
    let expected = Tensor::<2>::full([2, 3], 3.0, &testing::device()).into_data();
    sums.into_iter().for_each(|sum| assert_eq!(sum.unwrap(), expected));
}

/// Sums that are on their way together meet the same sums of the other ranks.
#[test]
fn sums_in_flight_keep_their_order() {
    let like = [PartShape::flat(2, DType::F32)];
    let found = run_between(World::threads(3), Some(by_hand(3)), |rank| {
        let device = testing::device();
        let begin = |at: usize| {
            let part = Tensor::<1>::from_data([at as f32, rank.rank() as f32], &device);
            rank.begin_all_reduce("", vec![Some(part)], &like, &device)
        };
        let under_way = (0..20).map(begin).collect::<Result<Vec<_>, _>>()?;
        let mut sums = Vec::new();
        for summing in under_way.into_iter().rev() {
            sums.extend(summing.wait()?.into_iter().flatten().map(numbers));
        }
        Ok(sums)
    });
    for found in found {
        let expected: Vec<_> = (0..20).rev().map(|at| vec![3.0 * at as f32, 3.0]).collect();
        assert_eq!(found.unwrap(), expected);
    }
}

/// No rank starts a sum before all have agreed on it, because it would never end.
#[test]
fn disagreeing_ranks_start_no_sum() {
    let part = |elements: usize| vec![Some(Tensor::<1>::zeros([elements], &testing::device()))];
    let sums = run_between(World::threads(2), Some(on(2, |_, _, part| never(part))), |rank| {
        let elements = 1 + rank.rank();
        begun(&rank, part(elements), &[PartShape::flat(elements, DType::F32)])
    });
    assert!(sums.into_iter().all(|sum| matches!(sum, Err(WorldError::Mismatch { .. }))));
    let limit = Duration::from_millis(1);
    let sums = run_between(World::threads(2).deadline(limit), Some(by_hand(2)), |rank| {
        match rank.rank() {
            0 => begun(&rank, part(1), &[PartShape::flat(1, DType::F32)]).map(drop),
            // Arrives only after the other rank has given up.
            _ => {
                while rank.failure().is_none() {
                    std::thread::yield_now();
                }
                Ok(())
            }
        }
    });
    assert!(matches!(&sums[0], Err(WorldError::Deadline { ranks, .. }) if *ranks == [1]));
}

fn sum_of_ones(rank: Communicator) -> Result<Tensor<1>, WorldError> {
    rank.all_reduce(Tensor::<1>::ones([2], &testing::device()))
}

/// The sum that the other ranks have started never ends in this case.
#[test]
fn a_device_that_refuses_ends_the_sum_on_every_rank() {
    let sum = |rank, _, part| match rank {
        1 => panic!("out of memory"),
        _ => never(part),
    };
    let sums = run_between(World::threads(3), Some(on(3, sum)), sum_of_ones);
    for sum in sums {
        let expected = "rank 1 failed: its device did not exchange: out of memory; this rank was in barrier of the \
                        devices' all_reduce";
        assert_eq!(sum.unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_sum_that_never_ends_stops_at_the_deadline() {
    // Long enough for the ranks to agree.
    let world = World::threads(2).deadline(Duration::from_secs(2));
    let sum = |rank, _, part| if rank == 1 { never(part) } else { part };
    for sum in run_between(world, Some(on(2, sum)), sum_of_ones) {
        assert!(matches!(sum, Err(WorldError::Deadline { ranks, .. }) if ranks.contains(&1)));
    }
}

/// Data on CUDA behaves the same: it exists, and reading it is what fails.
#[test]
fn pending_data_is_awaited() {
    let come = TensorData::from([1.0f32]);
    let to_come = burn::tensor::Bytes::from_file("/nothing/is/here", 4, 0);
    let to_come = TensorData::from_bytes(to_come, [1], DType::F32);
    assert_eq!((read(come).is_ok(), read(to_come).is_ok()), (true, false));
}

fn on(
    ranks: usize,
    collective: impl Fn(usize, Collective, Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
) -> DeviceCollectives {
    DeviceCollectives::new(vec![testing::device(); ranks], collective)
}

/// Blocks forever, as NCCL does if a rank is missing.
fn never(_: Tensor<1>) -> Tensor<1> {
    loop {
        thread::park();
    }
}
