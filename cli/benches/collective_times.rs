//! Fits the latency and the bandwidth of `firebrick plan --cluster` to collectives among ranks that are threads, and
//! compares its seconds with those of other sizes:
//!
//! ```sh
//! cargo bench -p firebrick-cli --bench collective_times
//! ```
//!
//! Every second size is fitted, and the sizes between them are predicted. The last column is the description of this
//! machine as a cluster of one node.
//!
//! Ranks that are processes are measured where a launcher starts the bench, built with the feature `mpi`:
//!
//! ```sh
//! bench=$(cargo bench -p firebrick-cli --bench collective_times --features mpi --no-run 2>&1 | grep -o 'target[^)]*')
//! mpirun -n 4 "$bench" processes
//! ```

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use firebrick::memory::keep_freed;
use firebrick::world::{Communicator, PartShape, World};
use firebrick_cli::{Cluster, Group};

/// Measurements of each size. The best one counts, because other work only adds time.
const ROUNDS: usize = 31;

/// Elements of the whole tensor, in f32: of small tensors, and of buckets up to the default size. Between those, buffers fit in
/// a cache and travel faster; above, glibc clears the memory of every buffer of a thread anew.
const SIZES: [usize; 9] = [1 << 14, 1 << 15, 1 << 16, 2 << 20, 3 << 20, 4 << 20, 5 << 20, 6 << 20, 7 << 20];

/// Prepares a collective of a tensor of so many elements.
type Collective = for<'a> fn(&'a Communicator, usize) -> Box<dyn FnOnce() + 'a>;

/// The collectives, and their passes over the ranks.
const COLLECTIVES: [(&str, u64, Collective); 3] =
    [("all_gather", 1, gather), ("reduce_scatter", 1, reduce_scatter), ("all_reduce", 2, all_reduce)];

fn ones(elements: usize) -> Tensor<1> {
    Tensor::ones([elements], &Device::flex())
}

fn like(elements: usize) -> [PartShape; 1] {
    [PartShape::of(&ones(elements).into_data())]
}

fn gather(rank: &Communicator, elements: usize) -> Box<dyn FnOnce() + '_> {
    let shard = vec![ones(elements / rank.size())];
    Box::new(|| drop(black_box(rank.begin_all_gather("", shard, &Device::flex()).unwrap().wait().unwrap())))
}

fn reduce_scatter(rank: &Communicator, elements: usize) -> Box<dyn FnOnce() + '_> {
    let (parts, like) = (vec![Some(ones(elements))], like(elements));
    Box::new(move || {
        let summing = rank.begin_reduce_scatter("", parts, &like, &Device::flex()).unwrap();
        drop(black_box(summing.wait().unwrap()));
    })
}

fn all_reduce(rank: &Communicator, elements: usize) -> Box<dyn FnOnce() + '_> {
    let (parts, like) = (vec![Some(ones(elements))], like(elements));
    Box::new(move || {
        let summing = rank.begin_all_reduce("", parts, &like, &Device::flex()).unwrap();
        drop(black_box(summing.wait().unwrap()));
    })
}

/// Returns the seconds of each round of a collective on a rank, and the bytes that it sends in one.
fn rounds(rank: &Communicator, elements: usize, collective: Collective) -> (Vec<f64>, u64) {
    let before = rank.traffic().tensors().sent;
    let one = |_| {
        let run = collective(rank, elements);
        rank.barrier().unwrap();
        let started = Instant::now();
        run();
        started.elapsed().as_secs_f64()
    };
    let seconds = (0..ROUNDS).map(one).collect();
    (seconds, (rank.traffic().tensors().sent - before) / ROUNDS as u64)
}

/// Returns the seconds of the best round, on its slowest rank, and the bytes that a rank sends; the same on each rank.
fn measured(rank: &Communicator, elements: usize, collective: Collective) -> (f64, u64) {
    let (seconds, bytes) = rounds(rank, elements, collective);
    let seconds = rank.numbers("the seconds of each round", &seconds).unwrap();
    let bytes = rank.numbers("the bytes", &[bytes as f64]).unwrap();
    let slowest = |round: usize| seconds.iter().map(|of_rank| of_rank[round]).fold(0.0, f64::max);
    let best = (0..ROUNDS).map(slowest).fold(f64::INFINITY, f64::min);
    (best, bytes.into_iter().flatten().fold(0.0, f64::max) as u64)
}

/// Fits `seconds = latency + bytes / rate` with the least sum of squares of the relative errors. Neither is below 0.
fn fitted(points: &[(f64, u64)]) -> (f64, f64) {
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|(seconds, bytes)| of(1.0 / seconds, *bytes as f64 / seconds)).sum()
    };
    let [aa, ab, bb] = [sum(&|a, _| a * a), sum(&|a, b| a * b), sum(&|_, b| b * b)];
    let [a, b] = [sum(&|a, _| a), sum(&|_, b| b)];
    let determinant = aa * bb - ab * ab;
    let (latency, per_byte) = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant);
    if latency < 0.0 { (0.0, bb / b) } else { (latency, 1.0 / per_byte) }
}

/// Returns the table's lines of a rank's world.
fn lines(rank: &Communicator) -> Vec<String> {
    let ranks = rank.size();
    let line = |(name, passes, collective): (&str, u64, Collective)| {
        let points: Vec<_> = SIZES.iter().map(|size| measured(rank, *size, collective)).collect();
        let every_second: Vec<_> = points.iter().copied().step_by(2).collect();
        let (latency, rate) = fitted(&every_second);
        let latency = latency / passes as f64;
        let description =
            format!("nodes=1,gpus={ranks},intra={:.2}GB/s,latency={:.0}us", rate / 1e9, latency * 1e6);
        let cluster: Cluster = description.parse().expect("the fit is a cluster");
        let group = Group { ranks: ranks as u64, per_node: ranks as u64 };
        let ratios = points
            .iter()
            .skip(1)
            .step_by(2)
            .map(|(seconds, bytes)| format!("{:>8.2}", cluster.seconds(group, *bytes, passes) / seconds));
        format!("{name:<15} {ranks:>5}   {:<44} {description}", ratios.collect::<String>())
    };
    COLLECTIVES.map(line).into()
}

/// Measures the ranks that a launcher started, and prints the table on the first.
#[cfg(feature = "mpi")]
fn of_processes() {
    let rank = World::mpi().join().expect("a launcher started this process").remove(0);
    let lines = lines(&rank);
    if rank.rank() == 0 {
        println!("{HEAD}\n{}", lines.join("\n"));
    }
}

#[cfg(not(feature = "mpi"))]
fn of_processes() {
    eprintln!("ranks that are processes need a build with `--features mpi`");
    std::process::exit(2);
}

const HEAD: &str = "collective      ranks   predicted / measured, of the sizes between   description";

fn main() {
    // As the program does: memory that a round frees serves the next one.
    keep_freed();
    if std::env::args().any(|argument| argument == "processes") {
        return of_processes();
    }
    println!("{HEAD}");
    for ranks in [2, 4] {
        std::thread::scope(|scope| {
            let start = |rank: Communicator| scope.spawn(move || lines(&rank));
            let threads: Vec<_> = World::threads(ranks).join().unwrap().into_iter().map(start).collect();
            let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            all[0].iter().for_each(|line| println!("{line}"));
        });
    }
}
