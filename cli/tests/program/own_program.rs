//! A program that adds techniques of its own to `firebrick`, for the tests of each.

use std::process::ExitCode;

use firebrick_cli::Program;

use crate::own_model::Bigram;
use crate::own_recipes::{SignSgd, SkipAbove};
use crate::own_schedule::Halved;
use crate::own_task::Backwards;
use crate::read_weights::SkipMapped;

/// Runs the program in this process and returns whether it succeeded. It has all techniques, because they are known to
/// the whole process, in which the tests of the others run too.
pub fn run(arguments: &[&str], sets: &[&str]) -> bool {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let arguments = ["firebrick"].into_iter().chain(arguments.iter().copied()).chain(sets);
    let program = Program::new()
        .optimizer::<SignSgd>("SignSgd")
        .strategy::<SkipAbove>("SkipAbove")
        .strategy::<SkipMapped>("SkipMapped")
        .schedule::<Halved>("Halved")
        .model::<Bigram>("Bigram")
        .task::<Backwards>("Backwards");
    let code = program.run_from(arguments.map(String::from).collect::<Vec<_>>());
    format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS)
}
