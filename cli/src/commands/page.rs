//! The commands that show a run: `watch` and `report`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::console::print;
use crate::run::Registries;
use crate::trained_run::versions;
use crate::watch::WatchOptions;
use crate::{Run, RunError, report_page, watch as watching};

/// `firebrick watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The output folder of a run.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Shows plain lines on a terminal too.
    #[arg(long)]
    plain: bool,
}

/// `firebrick report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The output folder of a run.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Runs `firebrick watch`.
pub(crate) fn watch(args: &WatchArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    // A run can be watched without its run file, but then its length is not known.
    let run = Run::read_with(registries, &args.folder.join("run.ron"), &[""; 0]).ok();
    let total_updates = run.and_then(|run| run.steps);
    let options = WatchOptions { plain: args.plain, total_updates, ..WatchOptions::default() };
    Ok(watching::watch(&args.folder, &options)?)
}

/// Runs `firebrick report`.
pub(crate) fn report(args: &ReportArgs) -> Result<(), RunError> {
    let page = report_page::write(&args.folder, &versions())?;
    print(&format!("{}\n", page.display()));
    Ok(())
}
