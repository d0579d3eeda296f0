//! The arguments that commands share: the run file, its overrides, and the format of the result.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::console::print;
use crate::{Run, RunError};
use firebrick::device::Tuning;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub file: FileArgs,
    /// Overrides the run's device: auto, cpu, cuda[:i], wgpu[:i] or vulkan[:i].
    #[arg(long, env = "BURN_DEVICE", value_name = "DEVICE")]
    device: Option<String>,
    /// Overrides the run's tuning of a GPU's kernels: quick, balanced or full. `firebrick cache` keeps what was tuned.
    #[arg(long, value_name = "LEVEL")]
    tuning: Option<Tuning>,
    /// Overrides the run's ranks: this many train together, each a thread, with a device each or all on the CPU. Under
    /// mpirun each process is a rank, unless you ask for more.
    ///
    /// An update then sees `batch.micro` x `batch.accumulate` x ranks samples.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    ranks: Option<u64>,
    /// Overrides the run's deadline: how long a rank waits for the others before the run ends.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    deadline: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The run file.
    #[arg(value_name = "RUN.ron")]
    pub run: PathBuf,
    /// Overrides a field of the run file; the value is RON. May be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub overrides: Vec<String>,
    /// Format of the result: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub report: ReportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum ReportFormat {
    Text,
    Json,
}

impl RunArgs {
    pub(crate) fn read(&self) -> Result<Run, RunError> {
        self.read_with(&[])
    }

    /// Returns the run with further overrides.
    pub(crate) fn read_with(&self, further: &[String]) -> Result<Run, RunError> {
        let overrides = [&self.file.overrides, further].concat();
        let mut run = Run::read(&self.file.run, &overrides)?;
        if let Some(device) = &self.device {
            run.device = device.clone();
        }
        run.tuning = self.tuning.unwrap_or(run.tuning);
        run.ranks = self.ranks.map_or(run.ranks, |ranks| Some(ranks as usize));
        run.deadline = self.deadline.or(run.deadline);
        Ok(run)
    }
}

impl ReportFormat {
    /// Prints a result in this format.
    pub fn print(self, result: &impl Serialize, text: impl FnOnce() -> String) {
        match self {
            Self::Text => print(&text()),
            Self::Json => print_json(result),
        }
    }
}

pub(crate) fn print_json(report: &impl Serialize) {
    print(&(serde_json::to_string(report).unwrap_or_default() + "\n"));
}
