//! The memory of an update whose optimizer state is on a disk.

use crate::alone;
use crate::support::*;
use firebrick::memory::Account;
use firebrick::optim::{AdamW, Sgd};
use firebrick::{Checkpoints, Data, Offload, Report, Schedule, Trainer};
use firebrick_models::{Gpt, GptConfig};

const LENGTH: usize = 8;
const WIDTH: usize = 128;
/// Bytes of the largest parameter, the first matrix of the feed-forward layers.
const BUCKET: usize = WIDTH * 4 * WIDTH * 4;

/// Trains a model whose update needs more memory than its passes do.
fn run(trainer: Trainer<Gpt>, optimizer: firebrick::optim::ModelOptimizer) -> Report {
    let config = GptConfig { layers: 24, heads: 4, width: WIDTH, dropout: 0.0, bias: true, tied: true };
    let model = config.init(VOCABULARY, LENGTH, &device().autodiff());
    let row = |i: usize| (0..=LENGTH).map(|j| ((i * 7 + j * j * 3 + j) % 10) as u32).collect();
    let data = Data::new(Rows((0..8).map(row).collect())).micro_batch(1);
    // A peak is the highest since the account began.
    let account = Account::new();
    let _on_it = account.enter();
    trainer.steps(2).fit(model, optimizer, Schedule::constant(1e-3), data).unwrap().report
}

/// The state of AdamW has many times the bytes that training may use beyond what it uses without a state.
#[test]
fn an_update_has_about_three_buckets_in_memory() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    let folder = tempfile::tempdir().unwrap();
    let adamw = || AdamW::new().init().unwrap();
    let offload = || Offload::optimizer().on(folder.path()).bucket_bytes(BUCKET);
    // The first run of a process makes allocations that last for the whole process.
    run(Trainer::new().with(offload()), adamw());

    let none = run(Trainer::new().with(Offload::optimizer()), Sgd::new().init().unwrap());
    assert_eq!(none.optimizer_bytes, 0);
    let in_memory = run(Trainer::new().with(Offload::optimizer()), adamw());
    let state = 8 * none.parameters;
    assert_eq!(in_memory.optimizer_bytes, state);
    // Two moments of each of three buckets, and what four threads write and four others read.
    let allowed = 3 * 2 * BUCKET + 8 * BUCKET;
    assert!(state > 4 * allowed, "{state} {allowed}");
    let output = folder.path().join("run");
    let saving = |trainer: Trainer<_>| trainer.output(&output).checkpoints(Checkpoints::every(1));
    let found = run(Trainer::new().with(offload()), adamw());
    assert_eq!(found.disk.unwrap().state_bytes, state);
    let beyond = |report: &Report| report.peak_bytes.saturating_sub(none.peak_bytes);
    assert!(beyond(&in_memory) > state * 9 / 10, "{} of {state}", beyond(&in_memory));
    assert!(beyond(&found) < allowed, "{} of {allowed}, for a state of {state}", beyond(&found));

    // A save copies the parameters, and gathers 4 MiB for each of two files. It reads the state tensor by tensor.
    let saved = run(saving(Trainer::new().with(offload())), adamw());
    let with_copies = allowed + 4 * none.parameters + (8 << 20);
    assert!(with_copies < state, "{with_copies} {state}");
    assert!(beyond(&saved) < with_copies, "{} of {with_copies}, for a state of {state}", beyond(&saved));
}
