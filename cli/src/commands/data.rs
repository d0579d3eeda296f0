//! `firebrick data`: the first batches as the model sees them.

use std::io::{IsTerminal, stdout};
use std::sync::Arc;

use clap::{Args, ValueEnum};

use super::run_args::{FileArgs, ReportFormat};
use crate::console::{print, print_json, print_styled, tell, terminal_width};
use crate::run::Registries;
use crate::{DataRun, Look, RunError};

/// `firebrick data`.
#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Micro-batches to show.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=1000))]
    batches: u16,
    /// Rows to show of each micro-batch.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=1000))]
    rows: u16,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    color: Color,
    /// Columns of a line. Default: the terminal's, or 100.
    #[arg(long, value_parser = clap::value_parser!(u16).range(20..=10_000))]
    width: Option<u16>,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

/// Shows the first batches of a run, and statistics of its data.
pub(crate) fn data(args: &DataArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let run = DataRun::read_with(registries, &args.file.run, &args.file.overrides)?;
    let loaded = run.load(tell)?;
    let preview = run.preview(&loaded, args.batches.into(), args.rows.into())?;
    if args.file.report == ReportFormat::Json {
        print_json(&preview.numbers);
        return Ok(());
    }
    let color = match args.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    };
    let width = args.width.or_else(terminal_width).unwrap_or(100).into();
    let drawn = preview.draw(Look { width, color });
    if color {
        print_styled(&drawn)
    } else {
        print(&drawn)
    }
    Ok(())
}
