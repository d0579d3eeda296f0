//! A checkpoint of N ranks resumes on M, in any stage: with the same weights to the bit, and then as a run of M ranks.

use std::path::Path;

use crate::support;
use crate::support::resuming::*;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use firebrick::checkpoints::{Checkpoint, Consolidate, What, consolidate};
use firebrick::strategies::Stack;
use firebrick::{Amp, Checkpoints, Offload, Resume, Schedule, Zero};

/// Runs on this many ranks in this stage; parameters of fewer than 64 elements stay whole.
fn run(
    ranks: usize,
    stage: u8,
    half: Option<Amp>,
    offload: Option<Offload>,
    way: Way,
    output: &Path,
) -> Part {
    let zero = Stack::new(Zero::stage(stage).replicate_below(64), offload);
    Way { ranks, ..way }.train(output, Stack::new(zero, half)).unwrap()
}

/// Returns the bytes of a checkpoint's weights as one file.
fn weights(checkpoint: &Path, folder: &Path) -> Vec<u8> {
    let checkpoint = Checkpoint::open(checkpoint).unwrap();
    let to = folder.join("weights.safetensors");
    consolidate(&checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| {}).unwrap();
    std::fs::read(to).unwrap()
}

/// 12 rows in each update, divisible by 1 to 4 ranks.
fn way(steps: u64) -> Way {
    let schedule = Schedule::constant(2e-3);
    Way { global: 12, steps, schedule, checkpoints: Checkpoints::every(12), ..Way::on(1, 1) }
}

#[test]
fn from_stage_0() {
    every_number_of_ranks_continues_on_every_other(0);
}

#[test]
fn from_stage_1() {
    every_number_of_ranks_continues_on_every_other(1);
}

#[test]
fn from_stage_2() {
    every_number_of_ranks_continues_on_every_other(2);
}

#[test]
fn from_stage_3() {
    every_number_of_ranks_continues_on_every_other(3);
}

fn every_number_of_ranks_continues_on_every_other(stage: u8) {
    let folder = tempfile::tempdir().unwrap();
    let expected = run(1, 0, None, None, way(12), &folder.path().join("alone"));
    for ranks in 1..=4 {
        let first = folder.path().join(format!("{stage}-{ranks}"));
        run(ranks, stage, None, None, way(4), &first);
        let from = saved(&first, 4);
        for onto in 1..=4 {
            // Changes the stage too, and offloads in some cases.
            let then = (stage + onto as u8) % 4;
            let offload = (onto == 2).then(Offload::optimizer);
            let resumed = |steps| way(steps).from(Resume::Path(from.clone()));
            let at_once = folder.path().join(format!("{stage}-{ranks}-{onto}"));
            run(onto, then, None, offload, resumed(4), &at_once);
            assert!(
                weights(&from, folder.path()) == weights(&saved(&at_once, 4), folder.path()),
                "{at_once:?}"
            );
            let later = folder.path().join(format!("{stage}-{ranks}-{onto}-later"));
            let part = run(onto, then, None, offload, resumed(12), &later);
            assert_eq!(part.losses.len(), 8);
            let apart = support::difference(&part.parameters, &expected.parameters);
            assert!(apart < 1e-5, "{ranks} ranks in stage {stage}, then {onto} in {then}: {apart}");
        }
    }
}

#[test]
fn a_sharded_half_precision_run_continues_in_another_precision() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    run(3, 3, Some(Amp::f16()), Some(Offload::parameters()), way(4), &first);
    let from = saved(&first, 4);
    let expected = run(1, 0, None, None, way(24), &folder.path().join("alone"));
    for (name, half) in [("bf16", Some(Amp::bf16())), ("f32", None), ("f16", Some(Amp::f16()))] {
        let output = folder.path().join(name);
        let part = run(1, 0, half, None, way(24).from(Resume::Path(from.clone())), &output);
        let apart = support::difference(&part.parameters, &expected.parameters);
        assert!(apart < 1e-2, "{name}: {apart}");
    }
}

/// Compares the weights as one file, the model at the end of a run, and the shards of a stage.
#[test]
fn the_weights_as_one_file_are_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let part = run(4, 3, Some(Amp::bf16()), None, way(4), &output);
    let bytes = weights(&saved(&output, 4), folder.path());
    let device = support::device();
    let mut model = support::map_waves(support::gpt(0.0, &device));
    let mut store = SafetensorsStore::from_bytes(Some(bytes)).allow_partial(true);
    let loaded = model.load_from(&mut store).unwrap();
    assert!(loaded.errors.is_empty() && loaded.unused.is_empty(), "{loaded}");
    assert!(support::parameters(&model) == part.parameters);
}
