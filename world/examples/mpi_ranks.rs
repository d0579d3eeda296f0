//! Ranks in processes that `mpirun` or Slurm started, checked beside ranks that are threads; and what they
//! say when one of them goes wrong.
//!
//! ```text
//! cargo build --workspace --features mpi --example mpi_ranks
//! mpirun -n 4 target/debug/examples/mpi_ranks check      # every collective, one rank in each process
//! mpirun -n 2 target/debug/examples/mpi_ranks check 2    # two ranks in each process
//! mpirun -n 4 target/debug/examples/mpi_ranks stop       # rank 2 stops: kill, stop, fail, panic, leave, differ
//! ```

mod on_threads;

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use firebrick_world::{Communicator, PartShape, Traffic, World, WorldError};
use on_threads::on_threads;

/// The rank that goes wrong.
const FAULTY: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.get(1).map_or(Ok(1), |threads| threads.parse())?;
    let world = World::mpi().threads_each(threads);
    match arguments.first().map(String::as_str) {
        Some("check") => check(&world),
        Some(fault) => go_wrong(fault, &world.deadline(Duration::from_secs(3))),
        None => Err("expected check, kill, stop, fail, panic, leave or differ".into()),
    }
}

/// Makes the same calls in a world of processes, twice, and in one of threads: all bits are the same.
fn check(world: &World) -> Result<(), Box<dyn Error>> {
    let ranks = world.join()?;
    let (first, size) = (ranks[0].rank(), ranks[0].size());
    let found = on_threads(ranks, every_call)?;
    let again = on_threads(world.join()?, every_call)?;
    let expected = on_threads(World::threads(size).join()?, every_call)?;
    for (local, (found, again)) in found.iter().zip(&again).enumerate() {
        let rank = first + local;
        if *found != expected[rank] || *again != expected[rank] {
            return Err(format!("rank {rank} differs from a thread:\n{found:?}\n{:?}", expected[rank]).into());
        }
        println!("rank {rank} of {size}: {} results as of threads", found.0.len());
    }
    Ok(())
}

/// Numbers whose sum rounds differently in another order.
fn numbers(rank: usize, shape: [usize; 2]) -> Tensor<2> {
    let number = |at: usize| {
        let bits = (rank * 7919 + at * 104_729 + 1) as f32 * 0.618_034;
        (bits.fract() - 0.4) * [1.0, 1e3, 1e-3][(rank + at) % 3]
    };
    let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(number).collect();
    Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
}

/// The results of every collective, in odd sizes, small and large, and what moved.
fn every_call(rank: &Communicator) -> Result<(Vec<Vec<u8>>, Traffic), WorldError> {
    let (me, size) = (rank.rank(), rank.size());
    let mut results: Vec<TensorData> = vec![];
    for dtype in [FloatDType::F64, FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
        for rows in [0, 1, 3, 411] {
            let mine = numbers(me, [rows, 257]).cast(dtype);
            results.push(rank.all_reduce(mine.clone())?.into_data());
            results.push(rank.all_gather(mine.clone())?.into_data());
            results.push(rank.broadcast(mine.clone(), size - 1)?.into_data());
            let part = mine.into_data();
            let like = PartShape::of(&part);
            results.push(rank.scatter("rows", (me == 0).then_some(part), like, 0)?);
            let divisible = numbers(me, [rows * size, 5]).cast(dtype);
            results.push(rank.reduce_scatter(divisible)?.into_data());
        }
    }
    let shard = |unit: usize| vec![numbers(me + unit, [100, 33]), numbers(me, [1, 1])];
    let flat = |unit: usize| shard(unit).into_iter().map(|shard| shard.reshape([-1])).collect();
    let device = Device::flex();
    let first = rank.begin_all_gather("unit 0", flat(0), &device)?;
    let second = rank.begin_all_gather("unit 1", flat(1), &device)?;
    drop(rank.begin_all_gather("unit 2", flat(2), &device)?);
    let like = [PartShape::flat(6 * size, DType::F32), PartShape::flat(6 * size, DType::F32)];
    let part = (me != 0).then(|| numbers(me, [2 * size, 3]).reshape([-1]));
    let scattered = rank.begin_reduce_scatter("unit 3", vec![part.clone(), None], &like, &device)?;
    let reduced = rank.begin_all_reduce("unit 4", vec![None, part], &like, &device)?;
    // Of groups of neighbours and of every second rank, under way together with those of all.
    let groups = [rank.split(|rank| rank / 2), rank.split(|rank| rank % 2)];
    let of_groups = groups.iter().map(|group| {
        let mine = numbers(me, [300, 7]).reshape([-1]);
        let like = [PartShape::flat(2100, DType::F32)];
        let gathered = group.begin_all_gather("of a group", vec![mine.clone()], &device)?;
        Ok((gathered, group.begin_all_reduce("of a group", vec![Some(mine)], &like, &device)?))
    });
    let of_groups = of_groups.collect::<Result<Vec<_>, WorldError>>()?;
    let norms = rank.numbers("norms", &vec![0.1; me])?.concat();
    results.push(TensorData::new(norms.clone(), [norms.len()]));
    let bytes = rank.all_gather_bytes("names", format!("rank {me}").repeat(me * 1000).as_bytes())?.concat();
    results.push(TensorData::new(bytes.clone(), [bytes.len()]));
    // In another order than they began.
    results.extend(reduced.wait()?.into_iter().flatten().map(Tensor::into_data));
    results.extend(second.wait()?.into_iter().map(Tensor::into_data));
    results.extend(first.wait()?.into_iter().map(Tensor::into_data));
    for (gathered, reduced) in of_groups.into_iter().rev() {
        results.extend(reduced.wait()?.into_iter().flatten().map(Tensor::into_data));
        results.extend(gathered.wait()?.into_iter().map(Tensor::into_data));
    }
    results.extend(scattered.wait()?.into_iter().flatten().map(Tensor::into_data));
    let shards = shard(0).into_iter().map(Tensor::into_data).collect();
    results.extend(rank.gather("shards", shards, size / 2)?.into_iter().flatten());
    rank.barrier()?;
    Ok((results.iter().map(|data| data.as_bytes().to_vec()).collect(), rank.traffic()))
}

/// Prints a rank's error in one piece, so that those of several ranks stay apart.
fn tell(rank: usize, error: &WorldError) {
    let line = format!("rank {rank} ends: {error}\n");
    eprint!("{line}");
}

/// One rank goes wrong in the middle of a run; the error of each rank is what it prints.
fn go_wrong(fault: &str, world: &World) -> Result<(), Box<dyn Error>> {
    let signal = |name: &str| Command::new("kill").args([name, &std::process::id().to_string()]).status();
    on_threads(world.join()?, |rank| {
        for step in 0.. {
            if step == 3 && rank.rank() == FAULTY {
                match fault {
                    "kill" => drop(signal("-KILL")),
                    "stop" => drop(signal("-STOP")),
                    "fail" => rank.fail("the disk is full"),
                    "panic" => panic!("this panic is part of a test"),
                    "leave" => std::process::exit(0),
                    "differ" => rank.barrier().inspect_err(|error| tell(FAULTY, error))?,
                    _ => {}
                }
            }
            let sum = rank.all_reduce(numbers(rank.rank(), [1000, 7]));
            sum.inspect_err(|error| tell(rank.rank(), error))?;
        }
        Ok(())
    })?;
    Ok(())
}
