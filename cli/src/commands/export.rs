//! The command `export`: writes weights of a run as a Hugging Face folder.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::console::print;
use crate::run::{PRETRAINED, Registries};
use crate::{Run, RunError};

const EXAMPLES: &str = "\
Examples:
  firebrick export runs/entities                       # the best weights so far, into runs/entities/pretrained
  firebrick export runs/entities --step 1500           # those of a checkpoint in runs/entities/checkpoints
  firebrick export runs/entities -o hub/entities       # into another folder

The folder is what Hugging Face's `from_pretrained` opens, what `model: Pretrained(\"FOLDER\")` of another run starts
from, and what `eval`, `predict` and `generate` use. A finished run has written it already, and
these commands write it for a run that was killed. If a run averages its weights (`Ema`), the average is written.
`firebrick consolidate` writes a checkpoint as one file instead, under the names of this program.";

/// `firebrick export`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// The output folder of a run that is in progress, was killed, or is finished.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Exports the checkpoint of this step. Default: the best weights, or those of the newest checkpoint if there was
    /// no evaluation.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// The folder to write. Files of the same names are replaced when all are written. Default: `pretrained` in the run's
    /// folder.
    #[arg(long, short, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Runs `firebrick export`.
pub(crate) fn export(args: &ExportArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let file = args.run.join("run.ron");
    if !file.is_file() {
        return Err(RunError::NoRun(args.run.clone()));
    }
    let run = Run::read_with(registries, &file, &[""; 0])?;
    let folder = args.output.clone().unwrap_or_else(|| args.run.join(PRETRAINED));
    let exported = run.export_saved(&args.run, args.step, &folder)?;
    print(&format!("{} are in {}\n", exported.weights, exported.folder.display()));
    Ok(())
}
