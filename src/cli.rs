//! The command line.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::checkpoint_command::{CheckpointCommand, ConsolidateArgs, checkpoint, consolidate};
use crate::console::{print, tell, terminal_width};
use crate::device::Listing;
use crate::exit::{EXIT_CODES, Exit};
use crate::export_command::{ExportArgs, export};
use crate::import_command::{ImportArgs, import};
use crate::page_command::{ReportArgs, WatchArgs, report, watch};
use crate::plan_command::{PlanArgs, plan};
use crate::run::Process;
use crate::signals::{self, Signal};
use crate::summary::{bench_summary, tokenized_summary, trained_summary};
use crate::trained_command::{EvalArgs, GenerateArgs, PredictArgs, eval, generate, predict};
use crate::{Bench, DataRun, Look, Resume, Run, RunError, Show};

/// Trains Burn models. A run is a RON file; every field of it can be overridden.
#[derive(Debug, Parser)]
#[command(version, about, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  firebrick train examples/causal_lm.ron
  firebrick train examples/tinyshakespeare.ron --set 'data.path=\"input.txt\"' --set steps=500
  firebrick train examples/causal_lm.ron --set 'strategies=[Amp(bf16), Clip(norm: 1.0)]'
  firebrick train examples/causal_lm.ron --ranks 8 --set 'strategies=[Zero(stage: 3), Clip(norm: 1.0)]'
  firebrick plan examples/causal_lm.ron --ranks 4 --budget 24GB
  firebrick bench examples/causal_lm.ron --raw --report json
  firebrick bench examples/causal_lm.ron --set 'strategies=[Recompute(every: 1)]' --beside 'strategies=[]'
  firebrick data examples/causal_lm.ron --batches 1 --rows 8
  firebrick eval runs/token_classification --data test.conll
  firebrick predict runs/token_classification --data new.jsonl -o answers.jsonl
  firebrick generate runs/causal_lm --prompt '/// ' --temperature 0.8 --top-p 0.95
  firebrick tokenize examples/causal_lm.ron --output corpus.tokens
  firebrick train examples/causal_lm.ron --set 'checkpoints=(every: 50)' --resume auto
  firebrick checkpoint show runs/causal_lm
  firebrick export runs/causal_lm --step 50 -o gpt
  firebrick consolidate runs/causal_lm --dtype bf16 -o model.safetensors
  firebrick import ds_config.json --training-args args.json -o run.ron
  firebrick devices";

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a model, and saves it.
    ///
    /// Shows burn-train's dashboard on a terminal (q and then s, or Ctrl-C, stops at the next
    /// step, with everything saved), and plain lines on standard error elsewhere. Writes the model, the best
    /// model, checkpoints, the tokenizer, the run and its metrics into the run's `output` folder. A run that was
    /// interrupted goes on with `--resume`.
    Train(TrainArgs),
    /// Evaluates a trained run: loss and scores, on its validation data or on other files.
    ///
    /// Uses the best weights of the run, which are in `pretrained` of its output folder.
    Eval(EvalArgs),
    /// Asks a trained run about the records of a file: a line of JSON for each, with what is predicted.
    ///
    /// Records need no labels; where they have some, they stand beside the prediction as `expected`.
    Predict(PredictArgs),
    /// Lets a trained run write: what follows a prompt (`CausalLm`), or what is made of a source (`Seq2Seq`).
    Generate(GenerateArgs),
    /// Shows a run in progress from another terminal: its curves, its last numbers, and how long it still takes.
    ///
    /// On a terminal it fills the screen (q or Ctrl-C leaves it; the run goes on), elsewhere it prints lines. It ends with
    /// the run: with exit code 1 where the run's process is gone and has left no report. It only reads.
    Watch(WatchArgs),
    /// Writes `report.html` into the output folder of a run, in progress or over: curves, numbers, predictions and
    /// settings on one page that needs no network.
    Report(ReportArgs),
    /// Shows the first batches as the model will see them, and the data in numbers.
    ///
    /// Tokens are decoded, with their labels below: the token or class that the model is to predict
    /// there, and nothing where no label counts in the loss. Below that are the lengths of the samples,
    /// the share of padding and the number of supervised tokens. Of the run file, only `task`, `data`,
    /// `batch`, `seed` and `strategies` matter here, and the others may be missing.
    Data(DataArgs),
    /// Tokenizes a large corpus once, into a file of token ids.
    ///
    /// A run reads it in place, however large it is: name it as `data.path`, and the tokenizer as
    /// `data.tokenizer`.
    Tokenize(TokenizeArgs),
    /// Writes the best weights of a run, or those of a checkpoint, as a Hugging Face folder.
    ///
    /// Works on a run in progress, on one that was killed, and on one that is over; the data is not read.
    Export(ExportArgs),
    /// Makes one file of a checkpoint's weights, whichever number of ranks saved them.
    ///
    /// Works on any machine and without the run file: tensors are read one after the other, so that the largest one
    /// has to fit in memory and not the model. `transformers`, `safetensors` and Burn open the result.
    Consolidate(ConsolidateArgs),
    /// Shows, checks and compares checkpoints.
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Makes a run file of a DeepSpeed configuration, and tells what became of each of its fields.
    ///
    /// "auto" is what Hugging Face's Trainer makes of it, with `--training-args`. What no file tells, such as data and
    /// model, stands in the run file behind a mark, `// fill in:`. Fails where a field that is not supported, or not
    /// known, may change the model that comes out, unless `--allow-unsupported` is given.
    Import(ImportArgs),
    /// Foretells what a run will hold, send and compute, and which strategies would let it fit.
    ///
    /// Nothing is trained: bytes of parameters, gradients and optimizer state come of the model's shapes, and those of
    /// activations of a few passes of the longest of the first micro-batches through two and three of its blocks, on
    /// the CPU. The table has every sensible combination of strategies, the cheapest first, and the first that fits
    /// is printed as it stands in a run file.
    Plan(PlanArgs),
    /// Times training steps, without evaluation and without files.
    Bench(BenchArgs),
    /// Lists the devices of this machine, and the number formats with what each device can do with them.
    ///
    /// Shows the devices of the backends that are compiled in. `--device` and `BURN_DEVICE` take their
    /// names.
    Devices(DevicesArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub file: FileArgs,
    /// Overrides the run's device: auto, cpu, cuda[:i], wgpu[:i] or vulkan[:i].
    #[arg(long, env = "BURN_DEVICE", value_name = "DEVICE")]
    device: Option<String>,
    /// Overrides the run's ranks: so many train together, each a thread with a device of its own, or all on the
    /// CPU. Under mpirun each process is a rank, unless there are to be more.
    ///
    /// An update then sees `batch.micro` samples x micro-batches (`batch.accumulate`) x ranks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    ranks: Option<u64>,
    /// Overrides the run's deadline: how long a rank waits for the others before the run ends.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    deadline: Option<u64>,
}

#[derive(Debug, Args)]
struct TrainArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Shows plain lines also on a terminal.
    #[arg(long)]
    plain: bool,
    /// Goes on from a checkpoint: `latest`, the newest complete one in the run's output folder (also where WHERE
    /// is left out); `auto`, the newest sound one, or from the beginning where nothing was saved; `step-N`;
    /// or the path of a checkpoint or of another run's output folder.
    ///
    /// The run goes on as if it had never ended. It may have other strategies, another number of ranks with the
    /// same global batch, and another length. See `checkpoints` in the run file for when a run is saved.
    #[arg(long, value_name = "WHERE", num_args = 0..=1, default_missing_value = "latest")]
    resume: Option<Resume>,
    /// Goes on although fields have changed that the result depends on, such as the seed, the schedule or the data.
    #[arg(long, requires = "resume")]
    allow_changes: bool,
}

#[derive(Debug, Args)]
struct BenchArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Runs the same model, batch and optimizer in a plain Burn loop too, taking turns.
    #[arg(long)]
    raw: bool,
    /// Runs the same with this field overridden too, taking turns, and prints the ratios. May be given
    /// several times.
    #[arg(long, value_name = "PATH=VALUE")]
    beside: Vec<String>,
    /// Steps that are timed in each round.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Steps before them that are not.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    warmup: u64,
    /// Rounds, each from fresh weights.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The run file.
    #[arg(value_name = "RUN.ron")]
    run: PathBuf,
    /// Overrides a field of the run file; the value is RON. May be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    overrides: Vec<String>,
    /// How the result is printed: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub report: ReportFormat,
}

#[derive(Debug, Args)]
struct DataArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Micro-batches that are shown.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=1000))]
    batches: u16,
    /// Rows of each that are shown.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=1000))]
    rows: u16,
    /// Whether there are colours.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    color: Color,
    /// Columns of a line. Default: those of the terminal, or 100.
    #[arg(long, value_parser = clap::value_parser!(u16).range(20..=10_000))]
    width: Option<u16>,
}

#[derive(Debug, Args)]
struct TokenizeArgs {
    #[command(flatten)]
    file: FileArgs,
    /// The file to write. One that is there is replaced when the new one is whole.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Debug, Args)]
struct DevicesArgs {
    /// How the result is printed: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
}

/// Whether there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ReportFormat {
    Text,
    Json,
}

impl Cli {
    /// Runs the command, and says how it ended: see `--help` for the exit codes. Errors go to standard error.
    pub fn run(self) -> ExitCode {
        let done = |result: Result<(), RunError>| result.map(|()| Exit::Done);
        Exit::code(match self.command {
            Command::Train(args) => train(&args),
            Command::Eval(args) => done(eval(&args)),
            Command::Predict(args) => done(predict(&args)),
            Command::Generate(args) => done(generate(&args)),
            Command::Watch(args) => done(watch(&args)),
            Command::Report(args) => done(report(&args)),
            Command::Export(args) => done(export(&args)),
            Command::Consolidate(args) => done(consolidate(&args)),
            Command::Checkpoint(command) => checkpoint(&command),
            Command::Import(args) => done(import(&args)),
            Command::Plan(args) => done(plan(&args)),
            Command::Bench(args) => done(bench(&args)),
            Command::Data(args) => done(data(&args)),
            Command::Tokenize(args) => done(tokenize(&args)),
            Command::Devices(args) => {
                devices(&args);
                Ok(Exit::Done)
            }
        })
    }
}

impl RunArgs {
    pub(crate) fn read(&self) -> Result<Run, RunError> {
        self.read_with(&[])
    }

    /// The run with further overrides.
    fn read_with(&self, further: &[String]) -> Result<Run, RunError> {
        let overrides = [&self.file.overrides, further].concat();
        let mut run = Run::read(&self.file.run, &overrides)?;
        if let Some(device) = &self.device {
            run.device = device.clone();
        }
        run.ranks = self.ranks.map_or(run.ranks, |ranks| Some(ranks as usize));
        run.deadline = self.deadline.or(run.deadline);
        Ok(run)
    }
}

fn train(args: &TrainArgs) -> Result<Exit, RunError> {
    let run = args.run.read()?;
    let interrupter = signals::interrupter(run.checkpoints.grace.map(Duration::from_secs));
    let show = if args.plain { Show::Lines } else { Show::Auto };
    let launched = run.launch_from(args.resume.clone(), args.allow_changes, show, interrupter)?;
    // The first process speaks for all: a launcher ends the others where one of them ends with another code than 0.
    if !Process::this()?.leads() {
        return Ok(Exit::Done);
    }
    let described = run.describe(&launched);
    let report = &launched.report;
    match args.run.file.report {
        ReportFormat::Text => print(&trained_summary(&run, &launched)),
        ReportFormat::Json => print_json(report),
    }
    if let Some(reason) = &report.checkpoint_error {
        return Err(RunError::NotSaved { reason: reason.clone() });
    }
    if let Some(error) = report.failed_writes.iter().find_map(RunError::unwritten) {
        return Err(error);
    }
    described?;
    if !report.interrupted {
        return Ok(Exit::Done);
    }
    // On the dashboard it is a key that stops the run, as Ctrl-C would.
    let signal = signals::received().unwrap_or(Signal::Interrupt);
    if let Some(step) = report.checkpoint_step {
        tell(&format!(
            "interrupted by {}; saved after update {step}: `--resume` goes on from it",
            signal.name()
        ));
    }
    Ok(Exit::Interrupted(signal))
}

fn bench(args: &BenchArgs) -> Result<(), RunError> {
    let run = args.run.read()?;
    let bench = Bench { steps: args.steps, warmup: args.warmup, rounds: args.rounds, raw: args.raw };
    let beside = match args.beside.is_empty() {
        true => None,
        false => Some(args.run.read_with(&args.beside)?),
    };
    let leads = Process::this()?.leads();
    let report = bench.run(&run, beside.as_ref(), |doing| {
        if leads {
            tell(doing)
        }
    })?;
    if !leads {
        return Ok(());
    }
    match args.run.file.report {
        ReportFormat::Text => print(&bench_summary(&report)),
        ReportFormat::Json => print_json(&report),
    }
    Ok(())
}

fn data(args: &DataArgs) -> Result<(), RunError> {
    let run = DataRun::read(&args.file.run, &args.file.overrides)?;
    let loaded = run.load(tell)?;
    let preview = run.preview(&loaded, args.batches.into(), args.rows.into())?;
    match args.file.report {
        ReportFormat::Text => {
            let color = match args.color {
                Color::Always => true,
                Color::Never => false,
                Color::Auto => stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            };
            let width = args.width.or_else(terminal_width).unwrap_or(100).into();
            print(&preview.draw(Look { width, color }));
        }
        ReportFormat::Json => print_json(&preview.numbers),
    }
    Ok(())
}

fn tokenize(args: &TokenizeArgs) -> Result<(), RunError> {
    let run = DataRun::read(&args.file.run, &args.file.overrides)?;
    let tokenized = run.tokenize(&args.output, &signals::interrupter(None), tell)?;
    match args.file.report {
        ReportFormat::Text => print(&tokenized_summary(&tokenized)),
        ReportFormat::Json => print_json(&tokenized),
    }
    Ok(())
}

fn devices(args: &DevicesArgs) {
    let listing = Listing::of_this_machine();
    match args.report {
        ReportFormat::Text => print(&listing.to_string()),
        ReportFormat::Json => print_json(&listing),
    }
}

pub(crate) fn print_json(report: &impl Serialize) {
    print(&(serde_json::to_string(report).unwrap_or_default() + "\n"));
}
