//! The commands about several runs: `runs` and `compare`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use firebrick_datasets::counted;
use serde_json::json;

use crate::RunError;
use crate::commands::run_args::ReportFormat;
use crate::console::{insist, tell};
use crate::run::Registries;
use crate::runs::{Compared, Listed, Prunable, folders, one_line, prunable, table};
use firebrick::ByteSize;
use firebrick::output::is_of_a_run;

const EXAMPLES: &str = "\
Examples:
  firebrick runs                     # the runs in `runs`
  firebrick runs /scratch/runs
  firebrick runs --prune             # what could be removed
  firebrick runs --prune --yes       # removes it

States: running; finished; stopped (early stopping, or a signal, after which it was saved); killed, which
`firebrick train RUN.ron --resume auto` continues; no update, which never trained; and damaged log, of whose
metrics.jsonl no line can be read.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  firebrick compare runs/entities runs/entities-1     # this run and the one before it
  firebrick compare runs/a runs/b --page a_and_b.html # with curves over each other
  firebrick compare runs/a runs/b --report json";

/// `firebrick runs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunsArgs {
    /// The folder with the runs, up to three folders deep.
    #[arg(value_name = "FOLDER", default_value = "runs")]
    folder: PathBuf,
    /// Lists the checkpoints that only take space: of runs that no process uses, all but the newest one and the best
    /// ones.
    #[arg(long)]
    prune: bool,
    /// Removes what `--prune` lists.
    #[arg(long, requires = "prune")]
    yes: bool,
    /// Format of the result: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
}

/// `firebrick compare`.
#[derive(Debug, Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub(crate) struct CompareArgs {
    /// The output folder of a run.
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The output folder of another run.
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Writes the comparison as a page too: one HTML file that needs no network, with the curves of both runs over each
    /// other.
    #[arg(long, value_name = "FILE.html")]
    page: Option<PathBuf>,
    /// Format of the result: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
}

/// Runs `firebrick runs`.
pub(crate) fn runs(args: &RunsArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    if args.prune {
        return prune(args, registries);
    }
    let runs: Vec<Listed> =
        folders(&args.folder)?.iter().map(|folder| Listed::read(registries, folder)).collect();
    args.report.print(&json!({ "runs": runs }), || match runs.is_empty() {
        true => format!("no runs in {}\n", args.folder.display()),
        false => table(&runs),
    });
    Ok(())
}

fn prune(args: &RunsArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let (all, left_alone) = prunable(registries, &args.folder)?;
    for run in &left_alone {
        insist(&format!("left alone: {} is in use, or you may not write there", run.display()));
    }
    let bytes: u64 = all.iter().map(Prunable::bytes).sum();
    let size = |bytes: u64| ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string();
    let mut removed = Vec::new();
    if args.yes {
        for one in &all {
            removed.extend(one.remove(registries)?);
        }
    }
    let report = json!({ "prunable": all, "bytes": bytes, "removed": removed, "left_alone": left_alone });
    args.report.print(&report, || {
        let mut text = String::new();
        for (path, bytes) in all.iter().flat_map(|one| &one.checkpoints) {
            text += &format!("{:>10}  {}\n", size(*bytes), one_line(&path.display().to_string()));
        }
        let count = all.iter().map(|one| one.checkpoints.len()).sum::<usize>();
        match (count, args.yes) {
            (0, _) => "nothing to remove: runs keep their newest and their best checkpoints\n".into(),
            (count, false) => {
                text + &format!(
                    "{}, {}: removed by `--prune --yes`\n",
                    counted(count, "checkpoint"),
                    size(bytes)
                )
            }
            (_, true) => {
                let listed = all.iter().flat_map(|one| &one.checkpoints);
                let bytes = listed.filter(|(path, _)| removed.contains(path)).map(|(_, bytes)| bytes).sum();
                text + &format!("removed {}, {}\n", counted(removed.len(), "checkpoint"), size(bytes))
            }
        }
    });
    Ok(())
}

/// Runs `firebrick compare`.
pub(crate) fn compare(args: &CompareArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    [&args.first, &args.second].into_iter().try_for_each(|folder| require_run(folder))?;
    let compared = Compared::read(registries, &args.first, &args.second);
    if let Some(page) = &args.page {
        compared.write_page(page)?;
        tell(&format!("the page is {}", page.display()));
    }
    args.report.print(&compared, || compared.text());
    Ok(())
}

fn require_run(folder: &Path) -> Result<(), RunError> {
    match is_of_a_run(folder) {
        true => Ok(()),
        false => Err(RunError::NoRun(folder.into())),
    }
}
