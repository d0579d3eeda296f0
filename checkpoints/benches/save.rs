//! Compares a save with writing and syncing the same bytes in as many files, and opening and loading with reading them,
//! and prints a table of times.
//!
//! The bytes are those of one rank with f32 weights and AdamW's two moments. Each baseline handles both files in
//! parallel, one thread each. Reading is into memory of its own, as a program does that uses what it reads; the row
//! without memory only copies the page cache into one small buffer again and again. Loading opens the checkpoint and
//! reads every tensor. The measurements take turns, and the ratio is of the fastest: a shared disk stalls at random, and
//! by more than what is measured. The folder is `target/tmp`, or the one in `CHECKPOINTS_BENCH`.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use firebrick_checkpoints::{Bytes, Checkpoint, Digest, Dtype, Folder, Manifest, Piece, RankState};

/// Number of measurements of each operation.
const ROUNDS: usize = 9;

/// Parameters per tensor, and the number of tensors: 600 MB with both moments.
const TENSOR: usize = 1_000_000;
const TENSORS: usize = 50;

/// Bytes per read or write.
const CHUNK: usize = 4 << 20;

fn seconds<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let started = Instant::now();
    let result = run();
    (started.elapsed().as_secs_f64(), result)
}

fn fastest(seconds: Vec<f64>) -> f64 {
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}

/// Shared bytes, so that a piece needs no copy.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn state(memory: &[Arc<Vec<u8>>]) -> RankState {
    let piece = |name: String, memory: &Arc<Vec<u8>>| Piece {
        name,
        dtype: Dtype::F32,
        shape: vec![TENSOR],
        rows: None,
        columns: None,
        bytes: Bytes::new(Shared(memory.clone())),
    };
    let (parameters, moments) = memory.split_at(TENSORS);
    let parameters =
        parameters.iter().enumerate().map(|(at, memory)| piece(format!("blocks.{at}.weight"), memory));
    let moments = moments.iter().enumerate().map(|(at, memory)| {
        piece(format!("blocks.{}.weight/momentum.moment_{}", at / 2, at % 2 + 1), memory)
    });
    RankState {
        ranks: 1,
        parameters: parameters.collect(),
        optimizer: moments.collect(),
        ..Default::default()
    }
}

fn save(folder: &Folder, state: &RankState) -> PathBuf {
    let staging = folder.staging(1, "bench");
    let files = staging.write_rank(state).unwrap();
    staging.publish(Manifest::new("bench", 1, 1, "0.1.0").files(files), "()").unwrap().path
}

/// Writes and syncs the same bytes, in two files in parallel.
fn write(folder: &Path, memory: &[Arc<Vec<u8>>]) {
    fs::create_dir(folder).unwrap();
    let (parameters, moments) = memory.split_at(TENSORS);
    thread::scope(|scope| {
        for (name, tensors) in [("parameters", parameters), ("moments", moments)] {
            scope.spawn(move || {
                let mut file = File::create(folder.join(name)).unwrap();
                for tensor in tensors {
                    tensor.chunks(CHUNK).for_each(|chunk| file.write_all(chunk).unwrap());
                }
                file.sync_all().unwrap();
            });
        }
    });
    File::open(folder).unwrap().sync_all().unwrap();
}

/// Reads both files in parallel.
fn read(folder: &Path) {
    thread::scope(|scope| {
        for entry in fs::read_dir(folder).unwrap() {
            scope.spawn(move || black_box(fs::read(entry.unwrap().path()).unwrap()));
        }
    });
}

/// Opens a checkpoint and reads each of its tensors, those of both files in parallel.
fn load(path: &Path) {
    let checkpoint = Checkpoint::open(path).unwrap();
    thread::scope(|scope| {
        for tensors in [checkpoint.parameters(), checkpoint.optimizer()] {
            scope.spawn(move || {
                let names: Vec<_> = tensors.names().collect();
                black_box(names.into_iter().map(|name| tensors.read(name).unwrap()).collect::<Vec<_>>());
            });
        }
    });
}

/// Reads both files in parallel, and keeps nothing.
fn skim(folder: &Path) {
    thread::scope(|scope| {
        for entry in fs::read_dir(folder).unwrap() {
            scope.spawn(move || {
                let mut file = File::open(entry.unwrap().path()).unwrap();
                let mut buffer = vec![0; CHUNK];
                while file.read(&mut buffer).unwrap() > 0 {
                    black_box(&buffer);
                }
            });
        }
    });
}

/// Hashes the bytes of both files in parallel, in memory.
fn sum(memory: &[Arc<Vec<u8>>]) {
    let (parameters, moments) = memory.split_at(TENSORS);
    thread::scope(|scope| {
        for tensors in [parameters, moments] {
            scope.spawn(move || {
                tensors.iter().for_each(|tensor| drop(black_box(Digest::of(tensor).to_string())));
            });
        }
    });
}

fn main() {
    let place = std::env::var("CHECKPOINTS_BENCH").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").into());
    let output = tempfile::tempdir_in(place).unwrap();
    // Each tensor has its own memory, as in a run, and the bytes vary.
    let memory: Vec<_> = (0..3 * TENSORS)
        .map(|at| Arc::new((0..4 * TENSOR).map(|byte| (byte * 31 + at) as u8).collect::<Vec<u8>>()))
        .collect();
    let state = state(&memory);
    let (plain, checkpoints) = (output.path().join("plain"), output.path().join("checkpoints"));
    let (mut saves, mut writes, mut sums) = (vec![], vec![], vec![]);
    let (mut opens, mut loads, mut reads, mut skims) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        writes.push(seconds(|| write(&plain, &memory)).0);
        let (time, path) = seconds(|| save(&Folder::new(&checkpoints), &state));
        saves.push(time);
        sums.push(seconds(|| sum(&memory)).0);
        skims.push(seconds(|| skim(&plain)).0);
        reads.push(seconds(|| read(&plain)).0);
        loads.push(seconds(|| load(&path)).0);
        opens.push(seconds(|| Checkpoint::open(&path).unwrap()).0);
        fs::remove_dir_all(&plain).unwrap();
        fs::remove_dir_all(&checkpoints).unwrap();
    }
    println!("{} MB in two files, fastest of {ROUNDS}", 12 * TENSOR * TENSORS / 1_000_000);
    println!("{:<30} {:>8} {:>8}", "", "seconds", "ratio");
    println!("{:<30} {:>8.3}", "the sums alone", fastest(sums));
    println!("{:<30} {:>8.3}", "read without memory", fastest(skims));
    let against = |beside: &str, plain: f64, ours: &[(&str, f64)]| {
        println!("{beside:<30} {plain:>8.3}");
        ours.iter().for_each(|(name, time)| println!("{name:<30} {time:>8.3} {:>8.2}", time / plain));
    };
    against("write and sync", fastest(writes), &[("save: the same and publish", fastest(saves))]);
    against(
        "read",
        fastest(reads),
        &[("open: check", fastest(opens)), ("load: check and read", fastest(loads))],
    );
}
