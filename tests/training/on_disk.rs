//! An optimizer's state on a disk: the run equals one with the state in host memory, to the bit, and whatever happens to
//! the disk is an error that leaves the checkpoints as they are.

use std::fs;
use std::path::Path;

use crate::every_optimizer::{every_optimizer, recipe};
use crate::resume::{SOME, continues_on};
use crate::support::many::{Setting, accumulate, grouped};
use crate::support::resuming::*;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use firebrick::optim::{Groups, ModelOptimizer};
use firebrick::strategies::{Composed, Composition};
use firebrick::{
    Accumulate, Amp, Checkpoints, Clip, DiskBytes, Ema, Freeze, Lora, Offload, Resume, ScratchError,
    TrainError, Zero,
};
use firebrick_models::Gpt;

/// Small enough for a dozen buckets.
const BUCKET: usize = 4096;

fn on(folder: &Path) -> Offload {
    Offload::optimizer().on(folder).bucket_bytes(BUCKET)
}

pub fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// Compares a run whose state is on a disk with one whose state is in host memory.
fn equals<S: Composition<Gpt>>(
    setting: &Setting,
    (ranks, micro_batches): (usize, usize),
    with: impl Fn(Offload) -> S,
) {
    let folder = tempfile::tempdir().unwrap();
    let expected = setting.run(ranks, micro_batches, with(Offload::optimizer()));
    let found = setting.run(ranks, micro_batches, with(on(folder.path())));
    assert_eq!(found.losses, expected.losses);
    assert!(found.parameters == expected.parameters);
    assert!(is_empty(folder.path()), "the file has no name");
    let disk = found.report.disk.unwrap();
    assert_eq!(disk.state_bytes, expected.report.optimizer_bytes);
    assert_eq!(found.report.optimizer_bytes, 0);
    assert_eq!(expected.report.disk, None);
    assert!(disk.file_bytes >= disk.state_bytes && disk.written_bytes >= disk.state_bytes);
    for (found, expected) in found.report.ranks.iter().zip(&expected.report.ranks) {
        assert_eq!(found.disk.unwrap().state_bytes, expected.optimizer_bytes, "rank {}", found.rank);
    }
}

#[test]
fn with_every_optimizer() {
    every_optimizer!(|built| {
        equals(&Setting { steps: 5, optimizer: built, ..Setting::default() }, (1, 1), |offload| offload);
    });
}

/// Returns an optimizer that has made an update already.
fn with_a_state(model: &Gpt) -> ModelOptimizer {
    struct Ones(GradientsParams);
    impl ModuleVisitor for Ones {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.register(param.id, param.val().inner().ones_like());
        }
    }
    let (mut optimizer, mut ones) = (grouped(model), Ones(GradientsParams::new()));
    model.visit(&mut ones);
    optimizer.step(1e-3, model.clone(), ones.0);
    optimizer
}

#[test]
fn with_an_optimizer_that_has_a_state() {
    let setting = Setting { steps: 3, optimizer: with_a_state, ..Setting::default() };
    equals(&setting, (1, 1), |offload| offload);
}

#[test]
fn with_groups_of_parameters_and_other_strategies() {
    let setting = Setting { steps: 6, optimizer: grouped, ..Setting::default() };
    equals(&setting, (1, 2), |offload| {
        let then = Composed::new().with(Accumulate(2)).with(Clip::norm(1.0)).with(Ema::new(0.9));
        Composed::new().with(offload).with(Amp::bf16()).with(then)
    });
    let setting = Setting { steps: 4, ..Setting::default() };
    equals(&setting, (1, 1), |offload| Composed::new().with(Lora::rank(2)).with(offload));
    equals(&setting, (1, 1), |offload| Composed::new().with(Freeze::paths(["tokens"])).with(offload));
}

#[test]
fn with_parameters_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let setting = Setting { steps: 4, ..Setting::default() };
    let expected = setting.run(1, 1, Offload::parameters());
    let found = setting.run(1, 1, Offload::parameters().on(folder.path()).bucket_bytes(BUCKET));
    assert_eq!(found.losses, expected.losses);
    assert!(found.parameters == expected.parameters);
}

#[test]
fn among_ranks() {
    let setting = Setting { steps: 5, ..Setting::default() }.cut_for(3, 2);
    for stage in 0..=3 {
        equals(&setting, (3, 2), |offload| {
            let zero = Zero::stage(stage).replicate_below(64);
            Composed::new().with(zero).with(offload).with(accumulate(2))
        });
    }
}

#[test]
fn in_buckets_of_any_size() {
    let disk = in_any_buckets(Offload::optimizer());
    // The first update only writes.
    assert_eq!(disk.read_bytes * 4, disk.written_bytes * 3);
}

/// Checks that buckets of any size give the weights of a run in memory, and move the same bytes. Returns those.
pub fn in_any_buckets(in_memory: Offload) -> DiskBytes {
    let setting = Setting { steps: 4, ..Setting::default() };
    let expected = setting.run(1, 1, in_memory.clone());
    let mut files = Vec::new();
    for bytes in [1, 10_000, usize::MAX] {
        let folder = tempfile::tempdir().unwrap();
        let found = setting.run(1, 1, in_memory.clone().on(folder.path()).bucket_bytes(bytes));
        assert!(found.parameters == expected.parameters, "{bytes}");
        files.push(found.report.disk.unwrap());
    }
    let of = |disk: &DiskBytes| (disk.state_bytes, disk.parameter_bytes, disk.read_bytes, disk.written_bytes);
    assert!(files.iter().all(|disk| of(disk) == of(&files[0])), "{files:?}");
    files.remove(0)
}

#[test]
fn two_runs_in_one_folder_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let setting = |seed| Setting { seed, steps: 6, ..Setting::default() };
    let run = |seed| {
        setting(seed).run(2, 1, Composed::new().with(Zero::stage(1)).with(on(folder.path()))).parameters
    };
    let expected = [1, 2]
        .map(|seed| setting(seed).run(2, 1, Composed::new().with(Zero::stage(1)).with(Offload::optimizer())));
    let found = std::thread::scope(|scope| {
        [1, 2].map(|seed| scope.spawn(move || run(seed))).map(|run| run.join().unwrap())
    });
    assert!(found[0] == expected[0].parameters && found[1] == expected[1].parameters);
    assert!(is_empty(folder.path()));
}

#[test]
fn a_resumed_run_continues_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    continues_on(Way::on(1, 4), Composed::new().with(on(folder.path())).with(Accumulate(4)), &SOME[..2]);
    for stage in [1, 3] {
        let zero = Zero::stage(stage).replicate_below(64);
        let strategies =
            Composed::new().with(zero).with(on(folder.path())).with(Accumulate(2)).with(Ema::new(0.8));
        continues_on(Way::on(2, 2), strategies, &SOME[1..2]);
    }
    for optimizer in [grouped, adafactor, eight_bits] {
        continues_on(Way { optimizer, ..Way::on(1, 1) }, on(folder.path()), &SOME[1..2]);
    }
    assert!(is_empty(folder.path()));
}

fn adafactor(model: &Gpt) -> ModelOptimizer {
    Groups::new().build(model, &*recipe(r#"{"Adafactor": {}}"#)).unwrap()
}

fn eight_bits(model: &Gpt) -> ModelOptimizer {
    Groups::new().build(model, &*recipe(r#"{"AdamW8bit": {}}"#)).unwrap()
}

/// The place of the state is no part of a checkpoint: it has the same bytes, and resumes with any other place.
#[test]
fn a_checkpoint_does_not_know_where_the_state_was() {
    checkpoints_are_the_same(2, Offload::optimizer(), on);
}

/// Checks that runs in memory and on a disk save the same bytes, in this stage on two ranks, and that either continues as the
/// other on one rank.
pub fn checkpoints_are_the_same(stage: u8, in_memory: Offload, on: impl Fn(&Path) -> Offload) {
    let folder = tempfile::tempdir().unwrap();
    let (memory, disk) = (folder.path().join("memory"), folder.path().join("disk"));
    let scratch = tempfile::tempdir().unwrap();
    let zero = |ranks| Zero::stage(if ranks == 1 { 0 } else { stage }).replicate_below(64);
    let way = |ranks| Way::on(ranks, 1);
    way(2).train(&memory, Composed::new().with(zero(2)).with(in_memory.clone())).unwrap();
    way(2).train(&disk, Composed::new().with(zero(2)).with(on(scratch.path()))).unwrap();
    for step in 1..=STEPS {
        assert_eq!(sums(&saved(&memory, step)), sums(&saved(&disk, step)), "step {step}");
    }
    let resumed = |from: &Path, name: &str, offload: Offload| {
        way(1).from(Resume::Path(saved(from, 5))).train(&folder.path().join(name), offload).unwrap()
    };
    let expected = resumed(&memory, "a", in_memory.clone());
    for (from, name, offload) in
        [(&disk, "b", on(scratch.path())), (&memory, "c", on(scratch.path())), (&disk, "d", in_memory)]
    {
        let found = resumed(from, name, offload);
        assert_eq!(found.losses, expected.losses);
        assert!(found.parameters == expected.parameters);
    }
}

#[test]
fn a_checkpoint_of_another_optimizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    Way::on(1, 1).train(&output, on(folder.path())).unwrap();
    let other = Way {
        optimizer: adafactor,
        allow_changes: true,
        ..Way::on(1, 1).from(Resume::Path(saved(&output, 5)))
    };
    let error =
        other.train(&folder.path().join("other"), on(folder.path())).map(drop).unwrap_err().to_string();
    assert!(error.contains("name the kind of optimizer that was saved"), "{error}");
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, file) = (folder.path().join("missing"), folder.path().join("file"));
    fs::write(&file, "").unwrap();
    for ranks in [1, 2] {
        for place in [&missing, &file] {
            let output = folder.path().join("run");
            let strategies = Composed::new().with(Zero::stage(1)).with(Offload::optimizer().on(place));
            let error = Way::on(ranks, 1).train(&output, strategies).map(drop).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("cannot create a file") && text.contains(place.to_str().unwrap()),
                "{text}"
            );
            assert!(matches!(cause(&error), TrainError::Scratch(ScratchError::Folder { .. })), "{error:?}");
            assert!(!output.join("metrics.jsonl").exists());
        }
    }
}

/// Returns the error of the rank that failed.
fn cause(error: &TrainError) -> &TrainError {
    match error {
        TrainError::Rank { reason, .. } => cause(reason),
        error => error,
    }
}

/// Opens the files of this process that have no name in a folder any more.
#[cfg(target_os = "linux")]
pub fn unnamed(folder: &Path) -> Vec<fs::File> {
    let links = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |link: &std::path::PathBuf| {
        fs::read_link(link)
            .is_ok_and(|to| to.starts_with(folder) && to.to_string_lossy().ends_with("(deleted)"))
    };
    // All of them first: what this function opens looks like them.
    let ours: Vec<_> = links.filter(is_ours).collect();
    let open = |link| fs::OpenOptions::new().read(true).write(true).open(link).unwrap();
    ours.into_iter().map(open).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_bit_that_flips_ends_the_run_and_its_checkpoints_continue() {
    use std::os::unix::fs::FileExt;

    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        let scratch = tempfile::tempdir().unwrap();
        let (whole, output) =
            (folder.path().join(format!("whole-{ranks}")), folder.path().join(format!("run-{ranks}")));
        let strategies = Composed::new().with(Zero::stage(1).replicate_below(64)).with(on(scratch.path()));
        let way = Way { checkpoints: Checkpoints::every(3).keep_every(1), ..Way::on(ranks, 1) };
        let expected = way.train(&whole, strategies.clone()).unwrap();
        let place = scratch.path().to_path_buf();
        let flip = move |step: u64| {
            if step == 5 {
                let files = unnamed(&place);
                assert_eq!(files.len(), ranks);
                // The state of one rank; one bit in each block, as some of them are free.
                for at in (100..files[0].metadata().unwrap().len()).step_by(4096) {
                    let mut byte = [0];
                    files[0].read_exact_at(&mut byte, at).unwrap();
                    files[0].write_all_at(&[byte[0] ^ 1], at).unwrap();
                }
                files[0].sync_all().unwrap();
            }
        };
        let error = way.clone().observed(flip).train(&output, strategies.clone()).map(drop).unwrap_err();
        let TrainError::Scratch(ScratchError::Damaged { part, expected: sum, found, .. }) = cause(&error)
        else {
            panic!("{error:?}")
        };
        // Another rank may be in the middle of its update.
        assert!(part.starts_with("bucket ") && (ranks > 1 || part == "bucket 0") && sum != found, "{error}");
        let text = error.to_string();
        assert!(text.contains(scratch.path().to_str().unwrap()) && text.contains(part), "{text}");
        assert!(is_empty(scratch.path()));
        let found = way.from(Resume::Latest).train(&output, strategies).unwrap();
        assert!(found.parameters == expected.parameters && found.report.steps == STEPS);
    }
}
