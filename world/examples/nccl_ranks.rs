//! Ranks in processes that exchange through a stand-in for NCCL, in shared memory, checked beside ranks that are threads
//! and exchange through the host; and what they say when one of them goes wrong inside a collective.
//!
//! ```text
//! cc -O2 -shared -fPIC -o libnccl.so.2 world/tests/nccl_stub/nccl_stub.c -lpthread
//! cargo build --workspace --features mpi,nccl-stub --example nccl_ranks
//! export FIREBRICK_NCCL_STUB=1 LD_LIBRARY_PATH=$PWD
//! mpirun -n 4 target/debug/examples/nccl_ranks check      # every collective, one rank in each process
//! mpirun -n 2 target/debug/examples/nccl_ranks check 2    # two ranks in each process
//! NCCL_STUB_FAULT=2:4:7:stop mpirun -n 4 target/debug/examples/nccl_ranks forever
//! ```

mod on_threads;

use std::error::Error;
use std::time::Duration;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use firebrick_world::{Collective, Communicator, PartShape, World, WorldError};
use on_threads::on_threads;

/// What a rank has received, in bytes, and what it has sent, in elements of each kind of collective.
type Found = (Vec<Vec<u8>>, [u64; 4]);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.get(1).map_or(Ok(1), |threads| threads.parse())?;
    let world = World::mpi().threads_each(threads).on(vec![Device::flex()]);
    match arguments.first().map(String::as_str) {
        Some("check") => check(&world),
        Some("forever") => forever(&world.deadline(Duration::from_secs(3))),
        _ => Err("expected check or forever".into()),
    }
}

/// Makes the same calls between devices and through the host: all bits are the same, and so is what moves.
fn check(world: &World) -> Result<(), Box<dyn Error>> {
    let ranks = world.join()?;
    if let Some(why) = ranks[0].through_host() {
        return Err(format!("the ranks exchange through the host: {why}").into());
    }
    let (first, size) = (ranks[0].rank(), ranks[0].size());
    let found = on_threads(ranks, every_call)?;
    let expected = on_threads(World::threads(size).join()?, every_call)?;
    for (local, (results, sent)) in found.into_iter().enumerate() {
        let rank = first + local;
        let (host, host_sent) = &expected[rank];
        if let Some(at) = results.iter().zip(host).position(|(found, expected)| found != expected) {
            return Err(format!("rank {rank}: result {at} differs from the host's").into());
        }
        if sent != *host_sent || results.len() != host.len() {
            return Err(format!(
                "rank {rank} has sent {sent:?} elements, and through the host {host_sent:?}"
            )
            .into());
        }
        println!("rank {rank} of {size}: {} results as through the host", results.len());
    }
    Ok(())
}

/// Sums until a rank goes wrong; each rank prints its error.
fn forever(world: &World) -> Result<(), Box<dyn Error>> {
    on_threads(world.join()?, |rank| {
        let like = [PartShape::flat(20_000, DType::F32)];
        let begin = |unit: usize| {
            let part = Some(numbers(rank.rank() + unit, 20_000, FloatDType::F32));
            rank.begin_all_reduce(&format!("unit {unit}"), vec![part], &like, &Device::flex())
        };
        let step = || {
            // Several at once, of which the last is awaited first.
            let under_way = (0..3).map(begin).collect::<Result<Vec<_>, _>>()?;
            under_way.into_iter().rev().try_for_each(|sum| sum.wait().map(drop))
        };
        loop {
            if let Err(error) = step() {
                let line = format!("rank {} ends: {error}\n", rank.rank());
                eprint!("{line}");
                return Err::<(), _>(error);
            }
        }
    })?;
    Ok(())
}

/// Numbers whose sum rounds differently in another order.
fn numbers(seed: usize, elements: usize, dtype: FloatDType) -> Tensor<1> {
    let number = |at: usize| {
        let bits = (seed * 7919 + at * 104_729 + 1) as f32 * 0.618_034;
        (bits.fract() - 0.4) * [1.0, 1e3, 1e-3][(seed + at) % 3]
    };
    let numbers: Vec<f32> = (0..elements).map(number).collect();
    Tensor::<1>::from_data(TensorData::new(numbers, [elements]), &Device::flex()).cast(dtype)
}

/// The four collectives in all dtypes and odd sizes, of all ranks and of groups, with many under way at once.
fn every_call(rank: &Communicator) -> Result<Found, WorldError> {
    let groups = [rank.clone(), rank.split(|rank| rank / 2), rank.split(|rank| rank % 2)];
    let device = Device::flex();
    let (mut sums, mut gathers) = (Vec::new(), Vec::new());
    for (dtype, each) in
        [(FloatDType::F32, 1), (FloatDType::F16, 33), (FloatDType::BF16, 700), (FloatDType::F32, 40_001)]
    {
        for group in &groups {
            let whole = each * group.size();
            let part = |seed: usize| Some(numbers(rank.rank() + seed, whole, dtype));
            let wire = DType::from(dtype);
            // The second part travels as it is, and its sum is rounded to f32.
            let like =
                [PartShape::flat(whole, wire), PartShape { sum: DType::F32, ..PartShape::flat(whole, wire) }];
            let parts = || vec![part(1), part(2)];
            sums.push(group.begin_reduce_scatter("chunks", parts(), &like, &device)?);
            gathers.push(group.begin_all_gather(
                "shards",
                vec![
                    numbers(rank.rank(), each, dtype),
                    numbers(rank.rank(), 3, FloatDType::BF16),
                    numbers(rank.rank() + 9, each + 1, dtype),
                ],
                &device,
            )?);
            sums.push(group.begin_all_reduce("sums", parts(), &like, &device)?);
            let handed_on =
                vec![numbers(rank.rank() + 3, each, dtype), numbers(rank.rank(), 5, FloatDType::F16)];
            gathers.push(group.begin_shift("what goes around", handed_on, &device)?);
        }
    }
    let mut results: Vec<TensorData> = Vec::new();
    // In another order than they began.
    for sum in sums.into_iter().rev() {
        results.extend(sum.wait()?.into_iter().flatten().map(Tensor::into_data));
    }
    for gathered in gathers {
        results.extend(gathered.wait()?.into_iter().map(Tensor::into_data));
    }
    let traffic = rank.traffic();
    let sent = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Shift]
        .map(|kind| traffic.of(kind).elements);
    // Parts that some ranks lack, or all, and one without elements.
    let like = [12, 24, 36, 0].map(|each| PartShape::flat(each * rank.size(), DType::F32));
    let part = |has: bool, at: usize| has.then(|| numbers(rank.rank(), like[at].shape[0], FloatDType::F32));
    let parts = || vec![part(rank.rank() == 1, 0), None, part(rank.rank() != 1, 2), part(true, 3)];
    let scattered = rank.begin_reduce_scatter("some", parts(), &like, &device)?;
    let reduced = rank.begin_all_reduce("some", parts(), &like, &device)?;
    for sum in [reduced, scattered] {
        for sum in sum.wait()? {
            results.push(sum.map_or(TensorData::from([f32::NAN]), Tensor::into_data));
        }
    }
    rank.barrier()?;
    Ok((results.iter().map(|data| data.as_bytes().to_vec()).collect(), sent))
}
