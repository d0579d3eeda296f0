//! The command `cache`: shows or clears the kernels that are kept for later starts.

use clap::{Args, Subcommand};

use crate::RunError;
use crate::commands::run_args::ReportFormat;
use crate::console::print;
use firebrick::ByteSize;
use firebrick::device::kernel_cache::KernelCache;

const EXAMPLES: &str = "\
Examples:
  firebrick cache                                # the folder, and the size of what it holds for each GPU
  firebrick cache clear                          # the next start compiles and tunes again
  FIREBRICK_CACHE=/scratch/kernels firebrick train run.ron --device cuda

The first start on a GPU compiles kernels and tunes them, which may take minutes. Later starts read them from
$FIREBRICK_CACHE, otherwise from $XDG_CACHE_HOME/firebrick/kernels, otherwise from ~/.cache/firebrick/kernels. A file
holds what one GPU needs with one version of NVIDIA's driver and one level of tuning. What another version of CubeCL or
another build of the program wrote is never read. On the CPU nothing is compiled.";

/// `firebrick cache`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    command: Option<CacheCommand>,
    /// Format of the result: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// Removes all kernels from the folder. Runs in progress keep theirs.
    Clear,
}

/// Runs `firebrick cache`.
pub(crate) fn cache(args: &CacheArgs) -> Result<(), RunError> {
    let cache = KernelCache::read()?;
    match args.command {
        None => args.report.print(&cache, || summary(&cache)),
        Some(CacheCommand::Clear) => {
            cache.clear()?;
            print(&format!("removed {} from {}\n", size(cache.bytes()), cache.folder.display()));
        }
    }
    Ok(())
}

fn summary(cache: &KernelCache) -> String {
    let mut text = format!("{}: {}\n", cache.folder.display(), size(cache.bytes()));
    for kept in &cache.kernels {
        let bytes = size(kept.bytes).to_string();
        text += &format!("{bytes:>10}  {}\n", kept.name);
    }
    text
}

fn size(bytes: u64) -> ByteSize {
    ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX))
}
