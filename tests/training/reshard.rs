//! A checkpoint of N ranks resumes on M, in any stage: with the same weights to the bit, and then as a run of M ranks.

use std::path::{Path, PathBuf};

use crate::support;
use crate::support::resuming::*;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use firebrick::checkpoints::{Checkpoint, Consolidate, What, consolidate};
use firebrick::strategies::Composed;
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
    run_with(Zero::stage(stage), ranks, half, offload, way, output)
}

fn run_with(
    zero: Zero,
    ranks: usize,
    half: Option<Amp>,
    offload: Option<Offload>,
    way: Way,
    output: &Path,
) -> Part {
    let zero = Composed::new().with(zero.replicate_below(64)).with(offload);
    Way { ranks, ..way }.train(output, Composed::new().with(zero).with(half)).unwrap()
}

/// Returns the bytes of a checkpoint's tensors, over all of its files.
fn bytes(checkpoint: &Path) -> u64 {
    let files = std::fs::read_dir(checkpoint).unwrap().map(|file| file.unwrap().path());
    let tensors = files.filter(|file| file.extension().is_some_and(|end| end == "safetensors"));
    let of_file = |file: PathBuf| {
        let bytes = std::fs::read(file).unwrap();
        // The length of the header comes first, then the header, then the tensors.
        bytes.len() as u64 - 8 - u64::from_le_bytes(bytes[..8].try_into().unwrap())
    };
    tensors.map(of_file).sum()
}

/// From groups that hold a copy each onto other groups, other numbers of ranks, and one; and back.
#[test]
fn copies_are_written_once_and_continue_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let expected = run(1, 0, None, None, way(12), &folder.path().join("alone"));
    let hybrid = |stage: u8, within: usize| Zero::stage(stage).within(within);
    let all = [
        (Zero::stage(0), 1),
        (Zero::stage(3), 3),
        (hybrid(1, 2), 4),
        (hybrid(2, 1), 2),
        (hybrid(3, 2), 4),
        (hybrid(3, 3), 6),
    ];
    let once = folder.path().join("once");
    run(1, 0, None, None, way(4), &once);
    for (number, (zero, ranks)) in all.iter().enumerate() {
        let first = folder.path().join(format!("{number}"));
        run_with(zero.clone(), *ranks, None, None, way(4), &first);
        let from = saved(&first, 4);
        assert_eq!(bytes(&from), bytes(&saved(&once, 4)), "{zero:?} on {ranks} ranks");
        for (onto, (then, ranks)) in all.iter().enumerate() {
            let resumed = |steps| way(steps).from(Resume::Path(from.clone()));
            let at_once = folder.path().join(format!("{number}-{onto}"));
            run_with(then.clone(), *ranks, None, None, resumed(4), &at_once);
            let same = weights(&from, folder.path()) == weights(&saved(&at_once, 4), folder.path());
            assert!(same, "{zero:?} to {then:?}");
            if (number + onto) % 2 > 0 {
                continue;
            }
            let later = folder.path().join(format!("{number}-{onto}-later"));
            let part = run_with(then.clone(), *ranks, None, None, resumed(12), &later);
            let apart = support::difference(&part.parameters, &expected.parameters);
            assert!(apart < 1e-5, "{zero:?} to {then:?}: {apart}");
        }
    }
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
            run(onto, then, None, offload.clone(), resumed(4), &at_once);
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
