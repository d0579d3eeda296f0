//! The `firebrick` program.

use std::process::ExitCode;

use clap::Parser;
use firebrick_cli::cli::Cli;

#[global_allocator]
static ALLOCATOR: firebrick::memory::Counting = firebrick::memory::Counting;

fn main() -> ExitCode {
    firebrick::process_start();
    firebrick::memory::keep_freed();
    Cli::parse().run()
}
