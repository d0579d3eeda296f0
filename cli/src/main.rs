//! The `firebrick` program.

use std::process::ExitCode;

use firebrick_cli::Program;

#[global_allocator]
static ALLOCATOR: firebrick::memory::Counting = firebrick::memory::Counting;

fn main() -> ExitCode {
    Program::new().run()
}
