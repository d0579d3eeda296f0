//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};

use crate::commands::cache::{CacheArgs, cache};
use crate::commands::checkpoint::{CheckpointCommand, ConsolidateArgs, checkpoint, consolidate};
use crate::commands::completions::{CompletionsArgs, completions};
use crate::commands::data::{DataArgs, data};
use crate::commands::devices::{DevicesArgs, devices};
use crate::commands::exit::{EXIT_CODES, Exit};
use crate::commands::export::{ExportArgs, export};
use crate::commands::import::{ImportArgs, import};
use crate::commands::init::{InitArgs, init};
use crate::commands::new::{NewArgs, new};
use crate::commands::page::{ReportArgs, WatchArgs, report, watch};
use crate::commands::plan::{PlanArgs, plan};
use crate::commands::push::{PushArgs, push};
use crate::commands::run_args::{FileArgs, LengthArgs, RunArgs};
use crate::commands::runs::{CompareArgs, RunsArgs, compare, runs};
use crate::commands::schema::{SchemaArgs, print_schema};
use crate::commands::summary::{bench_summary, tokenized_summary, trained_summary};
use crate::commands::trained::{EvalArgs, GenerateArgs, PredictArgs, eval, generate, predict};
use crate::console::{Detail, insist, tell};
use crate::log_lines::print_messages;
use crate::run::{Process, Registries};
use crate::signals;
use crate::signals::Signal;
use crate::{Bench, DataRun, RunError};
use crate::{out_of_memory, panics, threads};
use firebrick::{Resume, Show};

/// Trains Burn models. A run is a RON file; you can override every field of it.
#[derive(Debug, Parser)]
#[command(version, about, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    detail: DetailArgs,
}

const EXAMPLES: &str = "\
Examples:
  firebrick init SequenceClassification --data reviews.csv > run.ron
  firebrick train examples/causal_lm.ron
  firebrick train examples/tinyshakespeare.ron --set data.path=input.txt --steps 500
  firebrick train examples/causal_lm.ron --set 'strategies=[Amp(bf16), Clip(norm: 1.0)]'
  firebrick train examples/causal_lm.ron --ranks 8 --set 'strategies=[Zero(stage: 3), Clip(norm: 1.0)]'
  firebrick plan examples/causal_lm.ron --ranks 4 --budget 24GB
  firebrick plan config.json --budget 24GB
  firebrick bench examples/causal_lm.ron --raw --report json
  firebrick bench examples/causal_lm.ron --set 'strategies=[Recompute(every: 1)]' --beside 'strategies=[]'
  firebrick data examples/causal_lm.ron --batches 1 --rows 8
  firebrick eval runs/token_classification --data test.conll
  firebrick eval runs/causal_lm --perplexity --stride 512 --data wiki.test.txt
  firebrick eval runs/causal_lm --choices --data hellaswag_val.jsonl
  firebrick predict runs/token_classification --data new.jsonl -o answers.jsonl
  echo 'rain in the north' | firebrick predict runs/sequence_classification -
  firebrick generate runs/causal_lm --prompt '/// ' --temperature 0.8 --top-p 0.95
  firebrick runs runs --prune
  firebrick compare runs/causal_lm runs/causal_lm-1
  firebrick tokenize examples/causal_lm.ron --output corpus.tokens
  firebrick train examples/causal_lm.ron --set 'checkpoints=(every: 50)' --resume auto
  firebrick checkpoint show runs/causal_lm
  firebrick export runs/causal_lm --step 50 -o gpt
  firebrick push runs/causal_lm org/name
  firebrick consolidate runs/causal_lm --dtype bf16 -o model.safetensors
  firebrick import ds_config.json --training-args args.json -o run.ron
  firebrick new my-model --firebrick .
  firebrick devices --check
  firebrick cache clear";

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a model and saves it.
    ///
    /// On a terminal, shows burn-train's dashboard (q and then s, or Ctrl-C, ends the run after the current step and
    /// saves it); elsewhere, prints plain lines on standard error. Writes the model, the best model, checkpoints, the
    /// tokenizer, the run file and the metrics into the run's `output` folder. `--resume` continues an interrupted run.
    Train(TrainArgs),
    /// Evaluates a trained run: loss and metrics on its validation data or on other files, or a standard measure.
    ///
    /// Uses the best weights of the run, in the folder `pretrained` of its output folder. `--perplexity`, `--choices` and
    /// `--texts` compute standard measures on your files.
    Eval(EvalArgs),
    /// Predicts the records of a file with a trained run, and prints one line of JSON per record.
    ///
    /// Records need no labels; if they have some, the output has them as `expected` next to the prediction.
    Predict(PredictArgs),
    /// Generates text with a trained run: the continuation of a prompt (`CausalLm`), or the target of a source
    /// (`Seq2Seq`).
    Generate(GenerateArgs),
    /// Shows a run in progress from another terminal: its curves, its latest numbers, and the time left.
    ///
    /// On a terminal it fills the screen (q or Ctrl-C leaves it; the run continues); elsewhere it prints lines. It ends
    /// when the run ends, with exit code 1 if the run's process is gone and left no report. It only reads.
    Watch(WatchArgs),
    /// Writes `report.html` into the output folder of a run that is in progress or finished: curves, numbers,
    /// predictions and settings on one page that needs no network.
    Report(ReportArgs),
    /// Lists the runs in a folder: task, model, steps, losses, state and age. `--prune` removes checkpoints that only take
    /// space.
    Runs(RunsArgs),
    /// Compares two runs: their numbers, the settings that differ, and their curves; also as a page.
    Compare(CompareArgs),
    /// Shows the first batches as the model sees them, and statistics of the data.
    ///
    /// Prints the decoded tokens with their labels below: the token or class to predict, and nothing if the label does
    /// not count in the loss. On a terminal, tokens that are their own labels are green instead. Below are the lengths
    /// of the samples, the share of padding and the number of supervised tokens. Only `task`, `data`, `batch`, `seed`
    /// and `strategies` of the run file matter here; other fields may be missing.
    Data(DataArgs),
    /// Tokenizes a large corpus once into a file of token ids.
    ///
    /// A run reads the file in place, whatever its size: set it as `data.path`, and the tokenizer as `data.tokenizer`.
    Tokenize(TokenizeArgs),
    /// Writes the best weights of a run, or those of a checkpoint, as a Hugging Face folder.
    ///
    /// Works on a run that is in progress, was killed, or is finished. Does not read the data.
    Export(ExportArgs),
    /// Pushes a trained model to the Hugging Face Hub, as a commit of a repository.
    ///
    /// Pushes the folder that `firebrick export` writes. Needs a program built with `--features hub`, and a token in
    /// HF_TOKEN, or saved by `hf auth login`.
    Push(PushArgs),
    /// Merges the weights of a checkpoint into one file, whatever number of ranks saved them.
    ///
    /// Works on any machine and without the run file. It reads one tensor at a time, so only the largest tensor has to
    /// fit in memory. `transformers`, `safetensors` and Burn open the result.
    Consolidate(ConsolidateArgs),
    /// Shows, checks and compares checkpoints.
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Converts a DeepSpeed configuration, or Hugging Face's training arguments, to a run file, and reports what became of
    /// each field.
    ///
    /// With `--training-args`, "auto" means what Hugging Face's Trainer makes of it. Fields that no file has, such as
    /// data and model, stand in the run file behind a mark, `// fill in:`. Fails if an unsupported or unknown field may
    /// change the trained model, unless you pass `--allow-unsupported`.
    Import(ImportArgs),
    /// Estimates what a run will hold, send and compute, and which strategies let it fit.
    ///
    /// Trains nothing: the bytes of parameters, gradients and optimizer state follow from the model's shapes, and those
    /// of activations from a few passes through two and three of its blocks on the CPU, with the longest of the first
    /// micro-batches. Says whether the run fits as it is written, and prints the cheapest strategies that fit as lines of
    /// the run file; `--details` shows every sensible combination.
    Plan(PlanArgs),
    /// Times training steps, without evaluation and files.
    Bench(BenchArgs),
    /// Writes a commented run file for your data and your model, on standard output.
    ///
    /// Reads the first records: recognises the format, the fields of texts and labels, conversations and the validation
    /// file. The file trains as it is; what was recognised is on standard error.
    Init(InitArgs),
    /// Prints a JSON Schema of the run file, for editors and tools.
    Schema(SchemaArgs),
    /// Writes a crate that trains a model of its own: a Burn model, a data set of Burn's, and a composed recipe.
    New(NewArgs),
    /// Lists the devices of this machine and what each can do with each number format; `--check` checks the kernels of one.
    ///
    /// Shows the devices of the backends that are compiled in. Pass their names to `--device` or set them in
    /// `BURN_DEVICE`. `--check` computes every kernel on a device and on the CPU, and prints how far they are apart and how
    /// fast each is; the exit code is 1 if one is wrong.
    Devices(DevicesArgs),
    /// Shows what is kept for later starts, tokens and the kernels of GPUs, and its size. `firebrick cache clear` removes
    /// it.
    Cache(CacheArgs),
    /// Prints a script that completes commands and options in your shell.
    Completions(CompletionsArgs),
}

/// How much a command says.
#[derive(Debug, Args)]
struct DetailArgs {
    /// Prints errors, warnings and the result, and nothing else: no dashboard, no lines of progress.
    #[arg(long, short, global = true, conflicts_with = "verbose", display_order = 100)]
    quiet: bool,
    /// Prints a line for each step, instead of one every five seconds and the dashboard, and messages for developers;
    /// twice, also those of other libraries.
    #[arg(long, short, global = true, action = ArgAction::Count, display_order = 100)]
    verbose: u8,
}

impl DetailArgs {
    fn detail(&self) -> Detail {
        match (self.quiet, self.verbose) {
            (true, _) => Detail::Quiet,
            (false, 0) => Detail::Usual,
            (false, 1) => Detail::Verbose,
            (false, _) => Detail::Most,
        }
    }
}

#[derive(Debug, Args)]
struct TrainArgs {
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    length: LengthArgs,
    /// Shows plain lines on a terminal too.
    #[arg(long)]
    plain: bool,
    /// Resumes from a checkpoint: `latest`, the newest complete one in the run's output folder (the default if WHERE is
    /// missing); `auto`, the newest sound one, or from the beginning if nothing was saved; `step-N`; or the path of a
    /// checkpoint or of another run's output folder.
    ///
    /// The run continues as if it had never ended. It may have other strategies, another number of ranks with the same
    /// global batch, and another length. `checkpoints` in the run file sets when a run is saved.
    #[arg(long, value_name = "WHERE", num_args = 0..=1, default_missing_value = "latest")]
    resume: Option<Resume>,
    /// Resumes although fields changed that the result depends on, such as the seed, the schedule or the data.
    #[arg(long, requires = "resume")]
    allow_changes: bool,
}

#[derive(Debug, Args)]
struct BenchArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Runs the same model, batch and optimizer in a plain Burn loop too, in turns.
    #[arg(long)]
    raw: bool,
    /// Runs the same with this field overridden too, in turns, and prints the ratios. May be given several times.
    #[arg(long, value_name = "PATH=VALUE")]
    beside: Vec<String>,
    /// Timed steps in each round.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Untimed steps before them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    warmup: u64,
    /// Rounds, each with fresh weights.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

#[derive(Debug, Args)]
struct TokenizeArgs {
    #[command(flatten)]
    file: FileArgs,
    /// The file to write. An existing file is replaced when the new one is complete.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

impl Cli {
    /// Runs the command and returns its exit code, which `--help` lists. Errors go to standard error.
    pub fn run(self) -> ExitCode {
        self.run_with(Registries::built_in())
    }

    pub(crate) fn run_with(self, registries: &Arc<Registries>) -> ExitCode {
        self.detail.detail().install();
        print_messages();
        panics::print_neutralised();
        out_of_memory::end_with_code();
        // These two end when they have saved or removed what they write.
        if !matches!(self.command, Command::Train(_) | Command::Tokenize(_)) {
            signals::end_at_once();
        }
        if let Err(error) = threads::start() {
            return Exit::code(Err(error));
        }
        let done = |result: Result<(), RunError>| result.map(|()| Exit::Done);
        Exit::code(match self.command {
            Command::Train(args) => train(&args, registries),
            Command::Eval(args) => done(eval(&args, registries)),
            Command::Predict(args) => done(predict(&args, registries)),
            Command::Generate(args) => done(generate(&args, registries)),
            Command::Watch(args) => done(watch(&args, registries)),
            Command::Report(args) => done(report(&args)),
            Command::Runs(args) => done(runs(&args, registries)),
            Command::Compare(args) => done(compare(&args, registries)),
            Command::Export(args) => done(export(&args, registries)),
            Command::Push(args) => done(push(&args, registries)),
            Command::Consolidate(args) => done(consolidate(&args)),
            Command::Checkpoint(command) => checkpoint(&command),
            Command::Import(args) => done(import(&args)),
            Command::Plan(args) => done(plan(&args, registries)),
            Command::Bench(args) => done(bench(&args, registries)),
            Command::Data(args) => done(data(&args, registries)),
            Command::Tokenize(args) => done(tokenize(&args, registries)),
            Command::Init(args) => done(init(&args, registries)),
            Command::Schema(_) => {
                print_schema(registries);
                Ok(Exit::Done)
            }
            Command::New(args) => done(new(&args)),
            Command::Cache(args) => done(cache(&args)),
            Command::Completions(args) => {
                completions(&args, Self::command());
                Ok(Exit::Done)
            }
            Command::Devices(args) => devices(&args),
        })
    }
}

fn train(args: &TrainArgs, registries: &Arc<Registries>) -> Result<Exit, RunError> {
    let (run, fits_schedule) = args.run.read_of_length(registries, &args.length)?;
    let interrupter = signals::interrupter(run.checkpoints.grace.map(Duration::from_secs));
    let show = match Detail::installed() {
        Detail::Quiet => Show::Nothing,
        Detail::Usual if args.plain => Show::Lines,
        Detail::Usual => Show::Auto,
        Detail::Verbose | Detail::Most => Show::EachStep,
    };
    let (resume, allow_changes) = (args.resume.clone(), args.allow_changes);
    let mut launched = run.launch_fitted(fits_schedule, resume, allow_changes, show, interrupter)?;
    // Only the first process exits with an error code: a launcher kills the others when one exits with a code other
    // than 0.
    if !Process::this()?.leads() {
        return Ok(Exit::Done);
    }
    let described = run.describe(&launched);
    let report = &launched.report;
    args.run.file.report.print(report, || trained_summary(&run, &launched));
    if let Some(reason) = &report.checkpoint_error {
        return Err(RunError::NotSaved(reason.clone()));
    }
    if let Some(error) = report.failed_writes.iter().find_map(RunError::unwritten) {
        return Err(error);
    }
    let interrupted = report.interrupted;
    let checkpoint_step = report.checkpoint_step;
    if let Some(error) = launched.failed.take() {
        return Err(error);
    }
    described?;
    if !interrupted {
        return Ok(Exit::Done);
    }
    // A key on the dashboard stops the run in the same way as Ctrl-C.
    let signal = signals::received().unwrap_or(Signal::Interrupt);
    if let Some(step) = checkpoint_step {
        insist(&format!(
            "interrupted by {}; saved after update {step}: `--resume` continues from it",
            signal.name()
        ));
    }
    Ok(Exit::Interrupted(signal))
}

fn bench(args: &BenchArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let run = args.run.read(registries)?;
    let bench = Bench { steps: args.steps, warmup: args.warmup, rounds: args.rounds, raw: args.raw };
    let beside =
        if args.beside.is_empty() { None } else { Some(args.run.read_beside(registries, &args.beside)?) };
    let leads = Process::this()?.leads();
    let report = bench.run(&run, beside.as_ref(), |doing| {
        if leads {
            tell(doing)
        }
    })?;
    if !leads {
        return Ok(());
    }
    args.run.file.report.print(&report, || bench_summary(&report));
    Ok(())
}

fn tokenize(args: &TokenizeArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let run = DataRun::read_with(registries, &args.file.run, &args.file.overrides)?;
    let tokenized = run.tokenize(&args.output, &signals::interrupter(None), tell)?;
    args.file.report.print(&tokenized, || tokenized_summary(&tokenized));
    Ok(())
}
