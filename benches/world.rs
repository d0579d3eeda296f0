//! Compares collectives among ranks that are threads with copies of the same bytes, and prints a line of JSON for each.
//!
//! In an all-gather each rank writes the bytes of all ranks, and in a reduce-scatter it reads as many. They are
//! compared with each rank's thread copying the same number of bytes into fresh memory.

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor, TensorData, bf16};
use firebrick::world::{Communicator, PartShape, World};
use serde_json::json;

/// Measurements of each side; the two take turns.
const ROUNDS: usize = 21;

/// Bytes of the whole tensor: a unit of a model with some hundred million parameters.
const BYTES: usize = 64 << 20;

fn seconds(run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Returns ones of a dtype that fill the bytes.
fn ones(bytes: usize, dtype: DType) -> TensorData {
    match dtype {
        DType::BF16 => TensorData::new(vec![bf16::ONE; bytes / 2], [bytes / 2]),
        _ => TensorData::new(vec![1f32; bytes / 4], [bytes / 4]),
    }
}

/// Returns the median seconds of a rank's collective and of a copy. All ranks run each at the same time.
fn rounds(
    rank: &Communicator,
    input: impl Fn() -> TensorData,
    collective: impl Fn(&Communicator, TensorData) -> TensorData,
) -> (f64, f64) {
    let whole = vec![1u8; BYTES];
    let (mut collectives, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let input = input();
        rank.barrier().unwrap();
        collectives.push(seconds(|| drop(black_box(collective(rank, input)))));
        rank.barrier().unwrap();
        copies.push(seconds(|| drop(black_box(black_box(&whole).to_vec()))));
    }
    (median(collectives), median(copies))
}

fn compare(
    name: &str,
    ranks: usize,
    dtype: DType,
    input: impl Fn() -> TensorData + Sync,
    collective: impl Fn(&Communicator, TensorData) -> TensorData + Sync,
) {
    let (seconds, copy) = std::thread::scope(|scope| {
        let start = |rank: Communicator| {
            let (input, collective) = (&input, &collective);
            scope.spawn(move || rounds(&rank, input, collective))
        };
        let threads: Vec<_> = World::threads(ranks).join().unwrap().into_iter().map(start).collect();
        let measured: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        measured.into_iter().next().unwrap()
    });
    let timed = json!({
        "collective": name,
        "ranks": ranks,
        "dtype": format!("{dtype:?}"),
        "bytes": BYTES,
        "seconds": seconds,
        "seconds_copy": copy,
        "ratio_to_copy": seconds / copy,
    });
    println!("{timed}");
}

/// Returns host data as a tensor, without a copy.
fn flat(data: TensorData) -> Tensor<1> {
    let dtype = data.dtype();
    Tensor::from_data(data, (&Device::flex(), dtype))
}

fn main() {
    for (ranks, dtype) in [(2, DType::F32), (4, DType::F32), (2, DType::BF16), (4, DType::BF16)] {
        let shard = || ones(BYTES / ranks, dtype);
        compare("all_gather", ranks, dtype, shard, |rank, shard| {
            let gathering = rank.begin_all_gather("", vec![flat(shard)], &Device::flex()).unwrap();
            gathering.wait().unwrap().remove(0).into_data()
        });
        let whole = || ones(BYTES, dtype);
        let like = [PartShape::of(&whole())];
        compare("reduce_scatter", ranks, dtype, whole, |rank, whole| {
            let parts = vec![Some(flat(whole))];
            let summing = rank.begin_reduce_scatter("", parts, &like, &Device::flex()).unwrap();
            summing.wait().unwrap().remove(0).unwrap().into_data()
        });
    }
}
