//! Parameters of blocks on a disk: the run equals one with the parameters in host memory, to the bit, and whatever happens to
//! the disk is an error that leaves the checkpoints as they are.

#[cfg(target_os = "linux")]
use std::cell::Cell;
#[cfg(target_os = "linux")]
use std::fs::File;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::{Arc, Barrier, Mutex};
#[cfg(target_os = "linux")]
use std::time::Duration;

use crate::every_optimizer::every_optimizer;
#[cfg(target_os = "linux")]
use crate::on_disk::unnamed;
use crate::on_disk::{checkpoints_are_the_same, in_any_buckets, is_empty};
use crate::resume::{SOME, continues_on};
use crate::support::many::{Setting, accumulate, grouped};
use crate::support::resuming::*;
use crate::support::{Rows, VOCABULARY, Waves, adamw, device, gpt, has_bf16, parameters};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, LinearLayout};
use burn::tensor::Tensor;
use firebrick::datasets::{Batch, TokenBatch};
use firebrick::optim::Sgd;
use firebrick::strategies::{Composed, Composition, Paths, each_distinct_param, map_params};
use firebrick::{
    Accumulate, Amp, Checkpoints, Clip, Data, DiskBytes, Ema, Freeze, Keep, Lora, Loss, LossScale, Objective,
    Offload, Pass, Recompute, Resume, Schedule, ScratchError, SkipOutliers, TrainError, Trainer, World, Zero,
};
use firebrick_models::Gpt;

/// Small enough for a dozen buckets.
const BUCKET: usize = 4096;

fn on(folder: &Path) -> Offload {
    Offload::parameters().on(folder).bucket_bytes(BUCKET)
}

fn half() -> Amp {
    if has_bf16() { Amp::bf16() } else { Amp::f16() }
}

/// Compares a run whose parameters are on a disk with one whose parameters are in host memory.
fn equals<S: Composition<Gpt>>(
    setting: &Setting,
    (ranks, micro_batches): (usize, usize),
    with: impl Fn(Offload) -> S,
) -> DiskBytes {
    let folder = tempfile::tempdir().unwrap();
    let expected = setting.run(ranks, micro_batches, with(Offload::parameters()));
    let found = setting.run(ranks, micro_batches, with(on(folder.path())));
    assert_eq!(found.losses, expected.losses);
    assert!(found.parameters == expected.parameters);
    assert_eq!(found.report.valid_loss, expected.report.valid_loss);
    assert!(is_empty(folder.path()), "the file has no name");
    let disk = found.report.disk.unwrap();
    assert_eq!(disk.state_bytes, expected.report.optimizer_bytes);
    assert!(disk.parameter_bytes > 0 && found.report.host_bytes < expected.report.host_bytes);
    disk
}

#[test]
fn with_every_optimizer() {
    every_optimizer!(|built| {
        equals(&Setting { steps: 4, optimizer: built, ..Setting::default() }, (1, 1), |offload| offload);
    });
}

#[test]
fn with_groups_of_parameters_and_other_strategies() {
    let setting = Setting { steps: 6, optimizer: grouped, evaluated: true, ..Setting::default() };
    equals(&setting, (1, 2), |offload| {
        let then = Composed::new().with(Accumulate(2)).with(Clip::norm(1.0)).with(Ema::new(0.9));
        Composed::new().with(offload).with(half().keep_f32(Keep::norms())).with(then)
    });
    let setting = Setting { steps: 4, evaluated: true, ..Setting::default() };
    equals(&setting, (1, 2), |offload| Composed::new().with(offload).with(Accumulate(2)).with(half()));
    equals(&setting, (1, 1), |offload| {
        let amp = Amp::f16().scaled_by(LossScale::dynamic(1024.0)).evaluate_in(burn::tensor::FloatDType::F32);
        Composed::new().with(offload).with(amp)
    });
    equals(&setting, (1, 1), |offload| Composed::new().with(Recompute::every(2)).with(offload));
    equals(&setting, (1, 1), |offload| Composed::new().with(offload).with(SkipOutliers::new(3.0)));
    equals(&setting, (1, 1), |offload| Composed::new().with(Lora::rank(2)).with(offload));
    equals(&setting, (1, 1), |offload| {
        Composed::new().with(Freeze::paths(["tokens", "blocks.1"])).with(offload)
    });
}

#[test]
fn among_ranks() {
    let setting = Setting { steps: 4, evaluated: true, ..Setting::default() }.cut_for(3, 2);
    for stage in 0..=3 {
        equals(&setting, (3, 2), |offload| {
            let zero = Zero::stage(stage).replicate_below(64);
            Composed::new().with(zero).with(offload).with(half()).with(accumulate(2))
        });
    }
    for stage in 0..=1 {
        equals(&setting, (3, 2), |offload| {
            Composed::new().with(offload).with(accumulate(2)).with(Zero::stage(stage).replicate_below(64))
        });
    }
    // The average reads each new master, which then has values.
    equals(&setting, (3, 2), |offload| {
        let zero = Zero::stage(1).replicate_below(64);
        Composed::new().with(offload).with(accumulate(2)).with(zero).with(Ema::new(0.9))
    });
}

#[test]
fn in_buckets_of_any_size() {
    assert!(in_any_buckets(Offload::parameters()).parameter_bytes > 0);
}

/// Bytes in the file of the parameters of all blocks, and of the last block, in elements of so many bytes.
fn of_blocks(model: &Gpt, element: usize) -> [usize; 2] {
    let (paths, mut bytes) = (Paths::of(model), [0; 2]);
    let last = paths.blocks().last().unwrap().to_string();
    each_distinct_param(model, |param| {
        let path = paths.path(param.id()).unwrap();
        let whole = (param.shape().iter().product::<usize>() * element).next_multiple_of(4096);
        bytes[0] += if path.starts_with("blocks.") { whole } else { 0 };
        bytes[1] += if path.starts_with(&last) { whole } else { 0 };
    });
    bytes
}

/// A pass reads each block of the replica forward and backward, but for the last, which stays. An update reads and writes the
/// master, and writes the replica if it is another.
#[test]
fn a_step_reads_and_writes_what_the_documentation_says() {
    let model = gpt(0.1, &device().autodiff());
    let ([master, last], [replica, last_of_replica]) = (of_blocks(&model, 4), of_blocks(&model, 2));
    let in_step = |amp: Option<Amp>, passes: usize| {
        let of = |steps| {
            let optimizer = |_: &Gpt| Sgd::new().init().unwrap();
            let setting = Setting { steps, optimizer, ..Setting::default() };
            let folder = tempfile::tempdir().unwrap();
            let strategies =
                Composed::new().with(on(folder.path())).with(accumulate(passes)).with(amp.clone());
            setting.run(1, passes, strategies).report.disk.unwrap()
        };
        // The first pass does not know what comes next, and the file has all bytes of the model at the start.
        let (before, after) = (of(3), of(4));
        assert_eq!(before.file_bytes, after.file_bytes);
        (after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes)
    };
    assert_eq!(in_step(None, 1), (2 * master - last + master, master));
    assert_eq!(in_step(None, 2), (2 * (2 * master - last) + master, master));
    let expected = (2 * replica - last_of_replica + master, master + replica);
    assert_eq!(in_step(Some(half()), 1), expected);
}

#[test]
fn a_resumed_run_continues_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    continues_on(Way::on(1, 4), Composed::new().with(on(folder.path())).with(Accumulate(4)), &SOME[..2]);
    for stage in [1, 3] {
        let zero = Zero::stage(stage).replicate_below(64);
        let then = Composed::new().with(half()).with(Accumulate(2)).with(Ema::new(0.8));
        let strategies = Composed::new().with(zero).with(on(folder.path())).with(then);
        continues_on(Way::on(2, 2), strategies, &SOME[1..2]);
    }
    continues_on(Way { optimizer: grouped, ..Way::on(1, 1) }, on(folder.path()), &SOME[1..2]);
    assert!(is_empty(folder.path()));
}

/// The place of the parameters is no part of a checkpoint: it has the same bytes, and resumes with any other place.
#[test]
fn a_checkpoint_does_not_know_where_the_parameters_were() {
    checkpoints_are_the_same(3, Offload::parameters(), on);
}

#[test]
fn weights_that_are_not_finite_are_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let ended = |offload: Offload| {
        let data = Data::new(Rows::ragged(16)).micro_batch(8);
        let trainer = Trainer::new().with(Freeze::paths(["tokens", "positions"])).with(offload).steps(1);
        // The first update makes infinite weights from finite gradients.
        let schedule = Schedule::constant(1e39);
        trainer.fit(gpt(0.0, &device().autodiff()), adamw(), schedule, data).map(drop).unwrap_err()
    };
    let (expected, found) = (ended(Offload::parameters()), ended(on(folder.path())));
    assert!(matches!(&found, TrainError::Weights { parameter: Some(path) } if path.starts_with("blocks.")));
    assert_eq!(found.to_string(), expected.to_string());
}

/// Blocks that read one matrix twice, and a matrix of all blocks. Burn stores their own ones transposed.
#[derive(Module, Debug)]
struct Tied {
    embedding: Embedding,
    blocks: Vec<[Linear; 3]>,
}

const WIDTH: usize = 4;

impl Tied {
    fn new() -> Self {
        let device = device().autodiff();
        let linear = |layout| LinearConfig::new(WIDTH, WIDTH).with_layout(layout).init(&device);
        let shared = linear(LinearLayout::Row);
        let block = |_| {
            let own = linear(LinearLayout::Col);
            [own.clone(), own, shared.clone()]
        };
        let embedding = EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device);
        map_params(Self { embedding, blocks: (0..3).map(block).collect() }, &mut Waves::default())
    }
}

impl Objective<TokenBatch> for Tied {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let run = |[first, again, shared]: &[Linear; 3], x: Tensor<3>, _: &Pass| {
            shared.forward(again.forward(first.forward(x).tanh()).tanh())
        };
        let x = self.embedding.forward(batch.ids(pass.device()));
        let y = self.blocks.iter().fold(x, |x, block| pass.segment(block, x, run));
        let items = batch.items();
        Loss { sum: y.square().mean() * items as f64, items }
    }
}

#[test]
fn with_parameters_at_several_places() {
    let folder = tempfile::tempdir().unwrap();
    let run = |offload: Offload| {
        let data = Data::new(Rows::ragged(8)).micro_batch(2);
        let trainer = Trainer::new().with(offload).with(Clip::norm(1.0)).steps(5);
        let trained = trainer.fit(Tied::new(), adamw(), Schedule::constant(1e-2), data).unwrap();
        let [first, again, _] = &trained.model.blocks[0];
        assert_eq!(first.weight.val().into_data(), again.weight.val().into_data());
        (parameters(&trained.model), trained.report)
    };
    let (expected, _) = run(Offload::parameters());
    let (found, report) = run(on(folder.path()));
    assert!(found == expected && found != parameters(&Tied::new()));
    // The matrix of all blocks belongs to none of them.
    assert_eq!(report.disk.unwrap().parameter_bytes, 3 * (WIDTH * WIDTH + WIDTH) * 4);
}

/// Flips one bit in each block of a file, so many bytes behind its beginning.
#[cfg(target_os = "linux")]
fn flip(file: &File, behind: u64) {
    use std::os::unix::fs::FileExt;

    for at in (behind..file.metadata().unwrap().len()).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    file.sync_all().unwrap();
}

/// Runs, flips one bit in each block of the file during the step after `at`, and resumes.
#[cfg(target_os = "linux")]
fn flips<S: Composition<Gpt> + Clone>(at: u64, with: impl Fn(Offload) -> S) -> String {
    let (folder, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (whole, output) = (folder.path().join("whole"), folder.path().join("run"));
    let strategies = with(on(scratch.path()));
    let optimizer = |_: &Gpt| Sgd::new().init().unwrap();
    let checkpoints = Checkpoints::every(3).keep_every(1);
    let way = Way { optimizer, checkpoints, ..Way::on(1, 1) };
    let expected = way.train(&whole, strategies.clone()).unwrap();
    let place = scratch.path().to_path_buf();
    let flip = move |step: u64| {
        if step == at {
            flip(&unnamed(&place)[0], 100);
        }
    };
    let error = way.clone().observed(flip).train(&output, strategies.clone()).map(drop).unwrap_err();
    let text = error.to_string();
    let TrainError::Scratch(ScratchError::Damaged { part, expected: sum, found, .. }) = error else {
        panic!("{text}")
    };
    assert!(part.starts_with("`blocks.") && sum != found, "{text}");
    assert!(text.contains(scratch.path().to_str().unwrap()) && text.contains(&part), "{text}");
    assert!(is_empty(scratch.path()));
    let found = way.from(Resume::Latest).train(&output, strategies).unwrap();
    assert!(found.parameters == expected.parameters && found.report.steps == STEPS);
    text
}

#[cfg(target_os = "linux")]
#[test]
fn a_bit_that_flips_ends_the_run_and_its_checkpoints_continue() {
    assert!(flips(5, |offload| offload).contains("is damaged in the master"));
    assert!(
        flips(5, |offload| Composed::new().with(offload).with(half())).contains("is damaged in the replica")
    );
    flips(5, |offload| Composed::new().with(offload).with(Ema::new(0.9)));
}

/// Blocks with a matrix that ranks shard, and a bias that each has whole.
#[cfg(target_os = "linux")]
#[derive(Module, Debug)]
struct Biased {
    embedding: Embedding,
    blocks: Vec<Linear>,
}

/// The folder of the run of [`Biased`], and where its ranks meet.
#[cfg(target_os = "linux")]
static PLACE: Mutex<Option<(PathBuf, Arc<Barrier>)>> = Mutex::new(None);

#[cfg(target_os = "linux")]
impl Objective<TokenBatch> for Biased {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        thread_local! {
            static LOSSES: Cell<u32> = const { Cell::new(0) };
        }
        LOSSES.set(LOSSES.get() + 1);
        if LOSSES.get() == 3 {
            // In between, no rank reads or writes.
            let (folder, all) = PLACE.lock().unwrap().clone().unwrap();
            if all.wait().is_leader() {
                // The shortest tensors have 16 bytes.
                flip(&unnamed(&folder)[1], 8);
            }
            all.wait();
        }
        let run = |block: &Linear, x: Tensor<3>, _: &Pass| block.forward(x).tanh();
        let x = self.embedding.forward(batch.ids(pass.device()));
        let y = self.blocks.iter().fold(x, |x, block| pass.segment(block, x, run));
        let items = batch.items();
        Loss { sum: y.square().mean() * items as f64, items }
    }
}

/// A rank that cannot read a parameter makes the same calls as the others until the pass ends. The run then ends with the error
/// of the disk: other calls would end it with the error that ranks are in different calls.
#[cfg(target_os = "linux")]
#[test]
fn a_bit_that_flips_on_one_of_several_ranks_is_told_of_this_rank() {
    flips_on_one_of(2, Zero::stage(3));
    // Sums over the copies of shards follow the sums to the shards: the rank begins none that the others begin later.
    flips_on_one_of(4, Zero::stage(3).within(2));
}

#[cfg(target_os = "linux")]
fn flips_on_one_of(ranks: usize, zero: Zero) {
    let scratch = tempfile::tempdir().unwrap();
    *PLACE.lock().unwrap() = Some((scratch.path().into(), Arc::new(Barrier::new(ranks))));
    let device = device().autodiff();
    let embedding = EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device);
    let blocks = (0..3).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device)).collect();
    let model = map_params(Biased { embedding, blocks }, &mut Waves::default());
    let data = Data::new(Rows::ragged(4 * ranks)).micro_batch(2);
    let world = World::threads(ranks).deadline(Duration::from_secs(60));
    let trainer = Trainer::new().over(world).with(zero.replicate_below(8)).steps(5);
    let trainer = trainer.with(on(scratch.path()));
    let error = trainer.fit(model, adamw(), Schedule::constant(1e-2), data).map(drop).unwrap_err();
    let TrainError::Rank { rank, reason } = &error else { panic!("{error}") };
    let TrainError::Scratch(ScratchError::Damaged { file, part, .. }) = &**reason else { panic!("{error}") };
    assert!(
        part.starts_with("`blocks.")
            && file.to_string_lossy().ends_with(&format!("(the file of `Offload` in it, of rank {rank})"))
    );
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for ranks in [1, 2] {
        let output = folder.path().join("run");
        let strategies = Composed::new().with(Zero::stage(3)).with(Offload::parameters().on(&missing));
        let error = Way::on(ranks, 1).train(&output, strategies).map(drop).unwrap_err().to_string();
        assert!(error.contains("cannot create a file") && error.contains("missing"), "{error}");
        assert!(!output.join("metrics.jsonl").exists());
    }
}
