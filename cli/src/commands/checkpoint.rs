//! The commands that read checkpoints: `consolidate`, and `checkpoint show`, `verify` and `diff`.
//!
//! They need neither the run file, the model, nor the machines that trained it.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use firebrick_checkpoints::{
    self as checkpoints, Checkpoint, CheckpointError, Consolidate, Dtype, Folder, Section, What,
};
use firebrick_datasets::counted;
use serde_json::json;

use crate::RunError;
use crate::commands::exit::Exit;
use crate::commands::summary::Rows;
use crate::console::{Share, insist, print, print_json, tell};
use firebrick::checkpoint::FOLDER;
use firebrick::output::RUN;
use firebrick::{ByteSize, ResumeError, TrainError, TrainerState};

/// `firebrick consolidate`.
#[derive(Debug, Args)]
pub(crate) struct ConsolidateArgs {
    #[command(flatten)]
    checkpoint: CheckpointArg,
    /// The file to write. An existing file is replaced when the new one is complete.
    #[arg(long, short, value_name = "FILE", default_value = "model.safetensors")]
    output: PathBuf,
    /// Rounds all floats to this dtype. Default: the dtype in which they were saved.
    #[arg(long, value_enum)]
    dtype: Option<Float>,
    /// Writes files of at most this many bytes, such as `5GB`, with an index, in Hugging Face's layout.
    #[arg(long, value_name = "BYTES")]
    sharded: Option<ByteSize>,
    /// Writes tied weights under each of their names.
    #[arg(long)]
    with_aliases: bool,
    /// Writes the averaged weights, if the run averaged them.
    #[arg(long)]
    average: bool,
}

#[derive(Debug, Args)]
struct CheckpointArg {
    /// A checkpoint, such as `runs/a/checkpoints/step-00001000`, or a run's output folder, which stands for its newest
    /// checkpoint.
    #[arg(value_name = "CHECKPOINT")]
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Float {
    F32,
    Bf16,
    F16,
}

/// `firebrick checkpoint`.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Shows the contents of a checkpoint: step, ranks, data, strategies, files and tensors.
    Show(ShowArgs),
    /// Verifies every byte, and names every file that differs from what was saved.
    ///
    /// The checksums show that files are as they were written. They do not show who wrote them, nor that the weights
    /// are good: if you can change a file, you can also change the manifest.
    Verify(VerifyArgs),
    /// Compares two checkpoints tensor by tensor, whatever their numbers of ranks.
    ///
    /// The exit code is 0 if they are equal, and 1 if they differ.
    Diff(DiffArgs),
}

/// `firebrick checkpoint show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    checkpoint: CheckpointArg,
    /// Lists every tensor.
    #[arg(long)]
    tensors: bool,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

/// `firebrick checkpoint verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    checkpoint: CheckpointArg,
}

/// `firebrick checkpoint diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// A checkpoint, or a run's output folder.
    #[arg(value_name = "FIRST")]
    first: PathBuf,
    /// The checkpoint to compare it with.
    #[arg(value_name = "SECOND")]
    second: PathBuf,
}

/// Runs `firebrick consolidate`.
pub(crate) fn consolidate(args: &ConsolidateArgs) -> Result<(), RunError> {
    let checkpoint = open(&args.checkpoint.path)?;
    let dtype = args.dtype.map(|float| match float {
        Float::F32 => Dtype::F32,
        Float::Bf16 => Dtype::BF16,
        Float::F16 => Dtype::F16,
    });
    let shard_bytes = args.sharded.map(|ByteSize(bytes)| bytes as u64);
    let options = Consolidate { dtype, shard_bytes, with_aliases: args.with_aliases };
    let what = if args.average { What::Average } else { What::Parameters };
    let share = Share::of("writing");
    let written = checkpoints::consolidate(&checkpoint, what, &args.output, &options, |done, all| {
        share.tell(done, all)
    })
    .map_err(files)?;
    print(&format!("{}, {} in\n", counted(written.tensors, "tensor"), ByteSize(written.bytes as usize)));
    for file in &written.files {
        print(&format!("  {}\n", file.display()));
    }
    if written.infinite > 0 {
        tell(&format!("infinite in this dtype: {}; choose bf16 or f32", counted(written.infinite, "number")));
    }
    Ok(())
}

/// Runs `firebrick checkpoint`.
pub(crate) fn checkpoint(command: &CheckpointCommand) -> Result<Exit, RunError> {
    match command {
        CheckpointCommand::Show(args) => show(args).map(|()| Exit::Done),
        CheckpointCommand::Verify(args) => verify(args).map(|()| Exit::Done),
        CheckpointCommand::Diff(args) => diff(args),
    }
}

fn show(args: &ShowArgs) -> Result<(), RunError> {
    let checkpoint = open(&args.checkpoint.path)?;
    let state = TrainerState::of(&checkpoint).map_err(TrainError::from)?;
    let manifest = checkpoint.manifest();
    let sections = [
        ("parameters", Some(checkpoint.parameters())),
        ("optimizer", Some(checkpoint.optimizer())),
        ("average", checkpoint.average()),
    ];
    let tensors = || {
        let given = sections.iter().filter_map(|(name, tensors)| Some((*name, (*tensors)?)));
        given.flat_map(|(section, tensors)| {
            let all = tensors.names().filter_map(|name| Some((name, tensors.info(name)?)));
            all.map(move |(name, info)| (section, name, info))
        })
    };
    if args.json {
        let listed = tensors().map(|(section, name, info)| {
            json!({ "section": section, "name": name, "dtype": format!("{:?}", info.dtype), "shape": info.shape })
        });
        let listed: Vec<_> = if args.tensors { listed.collect() } else { Vec::new() };
        print_json(
            &json!({ "path": checkpoint.path(), "manifest": manifest, "trainer": state, "tensors": listed }),
        );
        return Ok(());
    }
    let cursor = state.cursor();
    let mut rows = Rows::default();
    rows.extend([
        ("checkpoint", checkpoint.path().display().to_string()),
        ("run", format!("{}, saved by firebrick {}", manifest.run, manifest.program)),
        ("step", state.step().to_string()),
        ("data", format!("epoch {}, {} consumed of it", cursor.epoch, counted(cursor.consumed, "sample"))),
        ("ranks", manifest.world_size.to_string()),
    ]);
    rows.add("valid loss", manifest.metric.map(|metric| format!("{metric:.4}")));
    let unsound = "weights or losses are not finite; `--resume` skips it for an older one that is sound";
    rows.add("not sound", (!manifest.sound).then_some(unsound));
    let merged = |scale| format!("merged by `consolidate`, scaled by {scale}");
    rows.add("factors", manifest.lora_scale.map(merged));
    rows.add("format", Some(format!("{}, summed with {}", manifest.format, manifest.algorithm())));
    let names: Vec<_> = state.strategies().iter().map(|state| state.stage()).collect();
    rows.add("strategies", Some(if names.is_empty() { "none".into() } else { names.join(", ") }));
    for (section, given) in sections.iter().filter_map(|(name, tensors)| Some((name, (*tensors)?))) {
        let bytes: usize = given.names().filter_map(|name| given.info(name)).map(|info| info.bytes()).sum();
        rows.add(section, Some(format!("{}, {}", counted(given.names().count(), "tensor"), ByteSize(bytes))));
    }
    rows.extend(manifest.aliases.iter().map(|(alias, path)| ("tied", format!("{alias} is {path}"))));
    let mut text = rows.text;
    for file in &manifest.files {
        text +=
            &format!("  {:<44} {:>10}  {}\n", file.name, ByteSize(file.bytes as usize).to_string(), file.sum);
    }
    if args.tensors {
        for (section, name, info) in tensors() {
            text += &format!("  {section:<10} {:?} {:?} {name}\n", info.dtype, info.shape);
        }
    }
    print(&text);
    Ok(())
}

fn verify(args: &VerifyArgs) -> Result<(), RunError> {
    let (path, passed_over) = resolved(&args.checkpoint.path)?;
    let share = Share::of("checking");
    let report = checkpoints::verify(&path, |done, all| share.tell(done, all));
    for stray in &report.strays {
        insist(&format!("{}: the manifest does not name it; it is never read", stray.display()));
    }
    for problem in &report.problems {
        insist(&problem.to_string());
    }
    match report.is_sound() && passed_over == 0 {
        true => {
            let bytes = report.manifest.map_or(0, |manifest| manifest.bytes());
            print(&format!("{} is as it was saved: {} checked\n", path.display(), ByteSize(bytes as usize)));
            Ok(())
        }
        false => {
            let path = if passed_over > 0 { args.checkpoint.path.join(FOLDER) } else { path };
            Err(RunError::Damaged { path, problems: report.problems.len() + passed_over })
        }
    }
}

fn diff(args: &DiffArgs) -> Result<Exit, RunError> {
    let (first, second) = (open(&args.first)?, open(&args.second)?);
    let share = Share::of("comparing");
    let diff = checkpoints::diff(&first, &second, |done, all| share.tell(done, all)).map_err(files)?;
    let mut text = String::new();
    for (section, name, change) in &diff.changes {
        let section = match section {
            Section::Parameters => "parameters",
            Section::Optimizer => "optimizer",
            Section::Average => "average",
        };
        text += &format!("{section:<10} {name}: {}\n", summary(change));
    }
    text += &format!("{} differ, {} are equal to the bit\n", diff.changes.len(), diff.equal);
    print(&text);
    Ok(if diff.changes.is_empty() { Exit::Done } else { Exit::Differs })
}

fn summary(change: &checkpoints::Change) -> String {
    use checkpoints::Change;
    match change {
        Change::OnlyInFirst => "only in the first".into(),
        Change::OnlyInSecond => "only in the second".into(),
        Change::Info { first, second } => {
            format!(
                "{:?} {:?} in the first, {:?} {:?} in the second",
                first.dtype, first.shape, second.dtype, second.shape
            )
        }
        Change::Values { elements, of, largest } => {
            format!("{elements} of {of} elements differ, by {largest:.3e} at most")
        }
        Change::Scalar { first, second } => format!("{first:?} in the first, {second:?} in the second"),
    }
}

/// Returns the folder of a checkpoint, or of the newest complete one of a run. Says which ones of the run are not complete,
/// some of which may be newer, and returns their number.
fn resolved(path: &Path) -> Result<(PathBuf, usize), RunError> {
    let of_run = path.join(FOLDER);
    if !of_run.is_dir() && !of_run.is_symlink() && !path.join(RUN).is_file() {
        return Ok((path.into(), 0));
    }
    let folder = Folder::new(of_run);
    let incomplete = folder.incomplete().map_err(files)?;
    for problem in &incomplete {
        insist(&format!("warning: passed over a checkpoint: {problem}"));
    }
    let newest = folder.latest().map_err(files)?;
    let newest = newest.ok_or_else(|| RunError::NoCheckpoint(path.into()))?;
    Ok((newest.path, incomplete.len()))
}

fn open(path: &Path) -> Result<Checkpoint, RunError> {
    let share = Share::of("checking");
    Checkpoint::open_showing(&resolved(path)?.0, |done, all| share.tell(done, all)).map_err(files)
}

fn files(error: CheckpointError) -> RunError {
    TrainError::from(ResumeError::from(error)).into()
}
