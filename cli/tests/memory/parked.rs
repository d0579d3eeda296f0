//! The memory of a run whose parameters of blocks are on a disk.

use std::sync::mpsc::channel;

use crate::alone;
use crate::support::*;
use firebrick::memory::{Account, Usage, reset_peak};
use firebrick::optim::Sgd;
use firebrick::{Composed, Data, Lora, Offload, Schedule, StepNumbers, Trainer};
use firebrick_models::{Gpt, GptConfig};

const LENGTH: usize = 8;
const WIDTH: usize = 64;
const LAYERS: usize = 64;
/// Bytes of the largest parameter, the first matrix of the feed-forward layers.
const BUCKET: usize = WIDTH * 4 * WIDTH * 4;
/// Bytes of the matrices of a block.
const BLOCK: usize = 12 * WIDTH * WIDTH * 4;

/// Trains with the model in the account of the run. Returns what is in use during steps: at the moment when a step's numbers
/// are known, and the most since the one before.
fn used<S: Composed<Gpt>>(trainer: Trainer<S>) -> Vec<Usage> {
    let account = Account::new();
    let _on_it = account.enter();
    let config = GptConfig { layers: LAYERS, heads: 4, width: WIDTH, dropout: 0.0, bias: true, tied: true };
    let model = config.init(VOCABULARY, LENGTH, &device().autodiff());
    let row = |i: usize| (0..=LENGTH).map(|j| ((i * 7 + j * j * 3 + j) % 10) as u32).collect();
    let data = Data::new(Rows((0..8).map(row).collect())).micro_batch(1);
    let (sender, seen) = channel();
    let watch = move |_: &StepNumbers| {
        sender.send(Usage::of_process().unwrap()).unwrap();
        reset_peak();
    };
    let (trainer, sgd) = (trainer.steps(6).observe(watch), Sgd::new().init().unwrap());
    trainer.fit(model, sgd, Schedule::constant(1e-3), data).unwrap();
    // The first peak includes the start; the last numbers are known at the end.
    let seen: Vec<_> = seen.into_iter().collect();
    seen[1..seen.len() - 1].to_vec()
}

/// All matrices are frozen, and training uses a tenth of their bytes.
#[test]
fn frozen_blocks_are_in_memory_a_few_at_a_time() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |offload| used(Trainer::new().with(Lora::rank(1)).with(offload));
    let offload = || Offload::parameters().on(folder.path()).bucket_bytes(BUCKET);
    // The first run of a process makes allocations that last for the whole process.
    run(offload());
    let blocks = LAYERS * BLOCK;
    let (memory, disk) = (run(Offload::parameters()), run(offload()));
    assert!(memory.iter().all(|usage| usage.live > blocks), "{memory:?}, {blocks} bytes of blocks");
    assert!(disk.iter().all(|usage| usage.peak < blocks / 10), "{disk:?}, {blocks} bytes of blocks");
}

/// An update has all gradients in memory, and the blocks a few buckets at a time.
#[test]
fn trained_blocks_are_in_memory_a_few_buckets_at_a_time() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    let folder = tempfile::tempdir().unwrap();
    let offload = || Offload::parameters().on(folder.path()).bucket_bytes(BUCKET);
    let run = |offload| used(Trainer::new().with(offload));
    run(offload());
    let blocks = LAYERS * BLOCK;
    let (memory, disk) = (run(Offload::parameters()), run(offload()));
    let peak = |seen: &[Usage]| seen.iter().map(|usage| usage.peak).max().unwrap();
    assert!(peak(&memory) > 2 * blocks, "{memory:?}, {blocks} bytes of blocks");
    assert!(peak(&disk) < blocks + blocks / 5, "{disk:?}, {blocks} bytes of blocks");
    assert!(disk.iter().all(|usage| usage.live < blocks / 10), "{disk:?}, {blocks} bytes of blocks");
}
