//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::console::{print, tell};
use crate::dashboard::Terminal;
use crate::{Bench, BenchReport, Interrupter, Launched, Run, RunError, Show};

/// Trains Burn models. A run is a RON file; every field of it can be overridden.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  firebrick train examples/causal_lm.ron
  firebrick train examples/tinyshakespeare.ron --set 'data.path=\"input.txt\"' --set steps=500
  firebrick train examples/causal_lm.ron --set 'strategies=[Amp(bf16), Clip(norm: 1.0)]'
  firebrick bench examples/causal_lm.ron --raw --report json";

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a model, and saves it.
    ///
    /// Shows burn-train's dashboard on a terminal (q and then s, or Ctrl-C, stops at the next
    /// step, with everything saved), and plain lines on standard error elsewhere. Writes the model, the best
    /// model, the tokenizer, the run and its metrics into the run's `output` folder.
    Train(TrainArgs),
    /// Times training steps, without evaluation and without files.
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The run file.
    #[arg(value_name = "RUN.ron")]
    run: PathBuf,
    /// Overrides a field of the run file; the value is RON. May be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    overrides: Vec<String>,
    /// Overrides the run's device: auto, cpu, cuda[:i], wgpu[:i] or vulkan[:i].
    #[arg(long, env = "BURN_DEVICE", value_name = "DEVICE")]
    device: Option<String>,
    /// How the result is printed: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
}

#[derive(Debug, Args)]
struct TrainArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Shows plain lines also on a terminal.
    #[arg(long)]
    plain: bool,
}

#[derive(Debug, Args)]
struct BenchArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Runs the same model, batch and optimizer in a plain Burn loop too, taking turns.
    #[arg(long)]
    raw: bool,
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReportFormat {
    Text,
    Json,
}

impl Cli {
    /// Runs the command. Errors go to standard error, and the exit code is then 1.
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Train(args) => train(&args),
            Command::Bench(args) => bench(&args),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell(&format!("error: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}

impl RunArgs {
    fn read(&self) -> Result<Run, RunError> {
        let mut run = Run::read(&self.run, &self.overrides)?;
        if let Some(device) = &self.device {
            run.device = device.clone();
        }
        Ok(run)
    }
}

fn train(args: &TrainArgs) -> Result<(), RunError> {
    let run = args.run.read()?;
    let interrupter = Interrupter::new();
    let stop = interrupter.clone();
    let terminal = Terminal::now();
    // Without a handler the run still trains; only Ctrl-C would then end it at once.
    let _ = ctrlc::set_handler(move || {
        if stop.should_stop() {
            // Asked for the second time: whatever is still being done is not waited for.
            terminal.restore();
            std::process::exit(130);
        }
        stop.stop(Some("interrupted by a signal"));
    });
    let show = if args.plain { Show::Lines } else { Show::Auto };
    let launched = run.launch(show, interrupter)?;
    match args.run.report {
        ReportFormat::Text => print(&in_words(&run, &launched)),
        ReportFormat::Json => print_json(&launched.report),
    }
    Ok(())
}

fn bench(args: &BenchArgs) -> Result<(), RunError> {
    let run = args.run.read()?;
    let bench = Bench { steps: args.steps, warmup: args.warmup, rounds: args.rounds, raw: args.raw };
    let report = bench.run(&run)?;
    match args.run.report {
        ReportFormat::Text => print(&bench_in_words(&report)),
        ReportFormat::Json => print_json(&report),
    }
    Ok(())
}

fn print_json(report: &impl Serialize) {
    print(&(serde_json::to_string(report).unwrap_or_default() + "\n"));
}

fn in_words(run: &Run, launched: &Launched) -> String {
    let report = &launched.report;
    let mut text = String::new();
    if let Some(sample) = &launched.sample {
        text += &format!("{sample}\n\n");
    }
    if let Some(stopped) = &report.stopped {
        text += &format!("stopped early    {stopped}\n");
    }
    text += &format!("steps            {} ({} skipped)\n", report.steps, report.skipped_steps);
    text += &format!("train loss       {:.4} (mean of the last 100 updates)\n", report.train_loss);
    if let Some(loss) = report.valid_loss {
        text += &format!("valid loss       {loss:.4}\n");
    }
    if let (Some(loss), Some(step)) = (report.best_valid_loss, report.best_step) {
        text += &format!("best valid loss  {loss:.4} at step {step}\n");
    }
    text += &format!("tokens/s         {:.0}\n", report.tokens_per_second);
    text += &format!("peak memory      {:.1} MB\n", report.peak_bytes as f64 / 1e6);
    text += &format!("saved in         {}\n", run.output.display());
    text
}

fn bench_in_words(report: &BenchReport) -> String {
    let BenchReport { trainer, raw } = report;
    let line = |name: &str, step: f64, peak: usize| {
        format!("{name:<10} {:>9.2} ms/step  {:>9.1} MB peak\n", step * 1e3, peak as f64 / 1e6)
    };
    let mut text = line("firebrick", trainer.step_seconds_median, trainer.peak_bytes);
    if let Some(raw) = raw {
        text += &line("plain Burn", raw.raw_step_seconds_median, raw.raw_peak_bytes);
        text += &format!(
            "{:<10} {:>9.3}          {:>9.3}\n",
            "ratio", raw.step_ratio_to_raw, raw.peak_ratio_to_raw
        );
    }
    text
}
