//! The arguments that commands share: the run file, its overrides, and the format of the result.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::console::{print, print_json};
use crate::run::{Overridden, Override, Registries};
use crate::{Run, RunError, RunStrategy};
use firebrick::Mesh;
use firebrick::device::Tuning;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    often: OftenArgs,
    /// Overrides the run's device: auto, cpu, cuda[:i], rocm[:i], metal[:i], vulkan[:i] or wgpu[:i].
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
    /// Divides the ranks into axes: with `tensor=2`, each two ranks share the layers of the model, for large blocks; with `context=2`,
    /// the tokens of their samples, for long sequences; with `tensor=2,context=2`, both.
    /// Replaces the `mesh` of the run.
    #[arg(long, value_name = "AXIS=RANKS,..", value_parser = mesh)]
    mesh: Option<Mesh>,
    /// Overrides the run's deadline: how long a rank waits for the others before the run ends.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    deadline: Option<u64>,
}

/// Overrides of the fields that are changed most often. Each replaces what excludes it.
#[derive(Debug, Args)]
struct OftenArgs {
    /// Overrides the highest rate of the run's schedule, whatever its kind.
    #[arg(long, value_name = "RATE")]
    lr: Option<f64>,
    /// Overrides the samples of a micro-batch; replaces `batch.micro_tokens`.
    #[arg(long, value_name = "SAMPLES")]
    batch: Option<u64>,
    /// Overrides the folder that the run writes into.
    #[arg(long, value_name = "FOLDER")]
    output: Option<String>,
    /// Overrides the peak of a device in floating-point operations per second, such as 312e12, of which the run shows
    /// the share that it uses (MFU). Default: that of known GPUs in the dtype that the run computes in.
    ///
    /// MFU = tokens/s x operations per token / (peak x devices), with the operations that `firebrick plan` counts for
    /// the forward and backward pass, recomputed ones not included, and tokens without padding.
    #[arg(long, value_name = "FLOP/S")]
    peak_flops: Option<f64>,
}

/// Overrides of the length of a run. A warmup that does not end within the run is shortened.
#[derive(Debug, Args)]
pub(crate) struct LengthArgs {
    /// Overrides the length of the run, in updates; replaces `epochs`.
    #[arg(long, value_name = "UPDATES", conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Overrides the length of the run, in passes over the data; replaces `steps`.
    #[arg(long, value_name = "PASSES")]
    epochs: Option<u64>,
}

impl OftenArgs {
    fn overrides(&self) -> Vec<Override> {
        let batch = self.batch.map(|size| {
            let size = size.to_string();
            Override::option("--batch", &size, "batch.micro", size.clone(), Some("batch.micro_tokens"))
        });
        let output = self
            .output
            .as_ref()
            .map(|folder| Override::option("--output", folder, "output", format!("{folder:?}"), None));
        let peak = self.peak_flops.map(|peak| {
            let peak = format!("{peak:?}");
            Override::option("--peak-flops", &peak, "peak_flops", peak.clone(), None)
        });
        let rate = self.lr.map(Override::rate);
        rate.into_iter().chain(batch).chain(output).chain(peak).collect()
    }
}

impl LengthArgs {
    pub(crate) fn overrides(&self) -> Vec<Override> {
        let length = |option, field, given: Option<u64>, instead| {
            let given = given?.to_string();
            Some(Override::option(option, &given, field, given.clone(), Some(instead)))
        };
        let steps = length("--steps", "steps", self.steps, "epochs");
        steps.into_iter().chain(length("--epochs", "epochs", self.epochs, "steps")).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The run file.
    #[arg(value_name = "RUN.ron")]
    pub run: PathBuf,
    /// Overrides a field of the run file; the value is RON, and a text needs no quotes. May be given several times.
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
    pub(crate) fn read(&self, registries: &Arc<Registries>) -> Result<Run, RunError> {
        Ok(self.read_overridden(registries, &[], Vec::new())?.told())
    }

    /// Returns the run of another file, with the same overrides.
    pub(crate) fn read_from(&self, registries: &Arc<Registries>, file: &Path) -> Result<Run, RunError> {
        Ok(self.overridden_from(registries, file, &[], Vec::new())?.told())
    }

    /// Returns the run with another length, and whether phases of its schedule are shortened to it.
    pub(crate) fn read_of_length(
        &self,
        registries: &Arc<Registries>,
        length: &LengthArgs,
    ) -> Result<(Run, bool), RunError> {
        let overridden = self.read_overridden(registries, &[], length.overrides())?;
        let fits_schedule = overridden.fits_schedule;
        Ok((overridden.told(), fits_schedule))
    }

    /// Returns the run with further overrides, beside the run without them. What is shortened in both is not told again.
    pub(crate) fn read_beside(
        &self,
        registries: &Arc<Registries>,
        further: &[String],
    ) -> Result<Run, RunError> {
        let told = self.read_overridden(registries, &[], Vec::new())?.shortened;
        let mut beside = self.read_overridden(registries, further, Vec::new())?;
        beside.shortened.retain(|line| !told.contains(line));
        Ok(beside.told())
    }

    fn read_overridden(
        &self,
        registries: &Arc<Registries>,
        further: &[String],
        length: Vec<Override>,
    ) -> Result<Overridden<Run>, RunError> {
        self.overridden_from(registries, &self.file.run, further, length)
    }

    fn overridden_from(
        &self,
        registries: &Arc<Registries>,
        file: &Path,
        further: &[String],
        length: Vec<Override>,
    ) -> Result<Overridden<Run>, RunError> {
        let beside = further.iter().map(|set| Override::of_option("--beside ", set));
        let sets = self.file.overrides.iter().map(|set| Override::set(set)).chain(beside);
        let mut overrides = sets.collect::<Result<Vec<_>, _>>()?;
        overrides.extend(self.often.overrides());
        overrides.extend(length);
        let Overridden { mut run, fits_schedule, shortened } =
            Run::read_overridden(registries, file, &overrides)?;
        if let Some(device) = &self.device {
            run.device = device.clone();
        }
        run.tuning = self.tuning.unwrap_or(run.tuning);
        run.ranks = self.ranks.map_or(run.ranks, |ranks| Some(ranks as usize));
        // Other settings beside the run's may have their own mesh.
        let has_mesh = |set: &str| set.contains("Mesh(") || set.trim().starts_with("mesh");
        if let Some(mesh) = self.mesh.clone().filter(|_| !further.iter().any(|set| has_mesh(set))) {
            let mesh = RunStrategy::new("Mesh", mesh);
            match run.strategies.iter_mut().find(|strategy| strategy.effects().context.is_some()) {
                Some(own) => *own = mesh,
                None => run.strategies.push(mesh),
            }
        }
        run.deadline = self.deadline.or(run.deadline);
        Ok(Overridden { run, fits_schedule, shortened })
    }
}

/// Reads the axes of a mesh: `context=2,tensor=4,pipeline=2`.
fn mesh(text: &str) -> Result<Mesh, String> {
    let axis = |mesh: Mesh, axis: &str| {
        let (name, ranks) = axis.split_once('=')?;
        let ranks = ranks.parse().ok().filter(|ranks| *ranks > 0)?;
        match name {
            "data" => Some(mesh.data(ranks)),
            "context" => Some(mesh.context(ranks)),
            "tensor" => Some(mesh.tensor(ranks)),
            "pipeline" => Some(mesh.pipeline(ranks)),
            _ => None,
        }
    };
    text.split(',').try_fold(Mesh::new(), axis).ok_or_else(|| {
        "expected the ranks of each axis, `tensor`, `pipeline`, `context` or `data`, such as `context=2` or `tensor=4,pipeline=2`".into()
    })
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::run::written;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    /// Returns the meshes of the run with this option, beside other settings.
    fn meshes(option: &str, beside: &[&str]) -> Vec<String> {
        let line = Line::parse_from(["firebrick", "../examples/mesh.ron", "--mesh", option]);
        let beside: Vec<_> = beside.iter().map(|set| set.to_string()).collect();
        let run = line.args.read_beside(Registries::built_in(), &beside).unwrap();
        run.strategies.iter().map(written).filter(|strategy| strategy.starts_with("Mesh")).collect()
    }

    #[test]
    fn a_mesh_replaces_that_of_the_run_but_not_that_of_strategies_beside_it() {
        assert_eq!(meshes("tensor=4,context=2", &[]), ["Mesh(context: 2, tensor: 4)"]);
        assert_eq!(meshes("context=2", &[]), ["Mesh(context: 2)"]);
        assert_eq!(meshes("context=2", &["steps=3"]), ["Mesh(context: 2)"]);
        assert_eq!(meshes("context=2", &["strategies=[Zero(stage: 1)]"]), ["Mesh(context: 2)"]);
        assert_eq!(meshes("context=2", &["mesh=(context: 8)"]), ["Mesh(context: 8)"]);
        let own = ["mesh=None", "strategies=[Mesh(context: 8)]"];
        assert_eq!(meshes("context=2", &own), ["Mesh(context: 8)"]);
        // Several of them stay several, which is an error.
        let twice = Line::parse_from([
            "firebrick",
            "../examples/mesh.ron",
            "--mesh",
            "context=2",
            "--set",
            "strategies=[Mesh(), Mesh(context: 4)]",
        ]);
        assert_eq!(twice.args.read_beside(Registries::built_in(), &[]).unwrap().strategies.len(), 3);
    }
}
