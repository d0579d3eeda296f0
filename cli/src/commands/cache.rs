//! The command `cache`: shows or clears what is kept for later starts: tokens, and the kernels of GPUs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::RunError;
use crate::commands::run_args::ReportFormat;
use crate::console::print;
use firebrick::ByteSize;
use firebrick::device::kernel_cache::KernelCache;
use firebrick_tasks::{KeptTokens, TokenCache};

const EXAMPLES: &str = "\
Examples:
  firebrick cache                                # the folders, and what they hold
  firebrick cache clear tokens                   # the next run tokenizes again
  firebrick cache clear kernels                  # the next start on a GPU compiles and tunes again
  firebrick cache clear                          # both
  firebrick train run.ron --set data.cache=false # neither reads tokens of earlier runs, nor keeps any
  FIREBRICK_CACHE=/scratch/kernels firebrick train run.ron --device cuda

Tokens: a run keeps the tokens of its data, and a vocabulary that it learned, for later runs on the same data with the
same tokenizer and settings. They are in $FIREBRICK_CACHE/tokens, otherwise in $XDG_CACHE_HOME/firebrick/tokens, otherwise
in ~/.cache/firebrick/tokens. Beyond 10 GB, or $FIREBRICK_CACHE_LIMIT, those that were not read for longest are removed.

Kernels: the first start on a GPU compiles kernels and tunes them, which may take minutes. Later starts read them from
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
    /// Removes tokens and kernels. Runs in progress keep theirs.
    Clear {
        /// Removes only these.
        kind: Option<CacheKind>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheKind {
    /// Tokens, and vocabularies that runs learned.
    Tokens,
    /// The compiled kernels of GPUs.
    Kernels,
}

/// What both caches hold.
#[derive(Serialize)]
struct CacheContents {
    #[serde(flatten)]
    kernels: KernelCache,
    /// The folder of tokens, which may not exist.
    tokens_folder: PathBuf,
    tokens: Vec<KeptTokens>,
}

impl CacheContents {
    fn bytes_of_tokens(&self) -> u64 {
        self.tokens.iter().map(|kept| kept.bytes).sum()
    }
}

/// Runs `firebrick cache`.
pub(crate) fn cache(args: &CacheArgs) -> Result<(), RunError> {
    let kernels = KernelCache::read()?;
    let cache = TokenCache::of_user()?;
    let kept = CacheContents { kernels, tokens_folder: cache.folder().into(), tokens: cache.entries()? };
    let Some(CacheCommand::Clear { kind }) = args.command else {
        args.report.print(&kept, || summary(&kept));
        return Ok(());
    };
    let removed =
        |bytes, folder: &Path| print(&format!("removed {} from {}\n", size(bytes), folder.display()));
    if kind != Some(CacheKind::Kernels) {
        cache.clear()?;
        removed(kept.bytes_of_tokens(), cache.folder());
    }
    if kind != Some(CacheKind::Tokens) {
        kept.kernels.clear()?;
        removed(kept.kernels.bytes(), &kept.kernels.folder);
    }
    Ok(())
}

fn summary(kept: &CacheContents) -> String {
    let CacheContents { kernels, tokens_folder, tokens } = kept;
    let tokens = tokens.iter().map(|one| (one.bytes, &*one.name));
    let of_gpus = kernels.kernels.iter().map(|one| (one.bytes, &*one.name));
    section("tokens", tokens_folder, kept.bytes_of_tokens(), tokens)
        + &section("kernels", &kernels.folder, kernels.bytes(), of_gpus)
}

fn section<'a>(
    kind: &str,
    folder: &Path,
    bytes: u64,
    entries: impl Iterator<Item = (u64, &'a str)>,
) -> String {
    let mut text = format!("{kind} in {}: {}\n", folder.display(), size(bytes));
    for (bytes, name) in entries {
        let bytes = size(bytes).to_string();
        text += &format!("{bytes:>10}  {name}\n");
    }
    text
}

fn size(bytes: u64) -> ByteSize {
    ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX))
}
