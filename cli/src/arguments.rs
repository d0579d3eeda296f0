//! The arguments of the process, read as a command.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::error::ErrorKind as Fault;
use clap::{Command, CommandFactory, Error, FromArgMatches};

use crate::cli::Cli;
use crate::commands::init::after_help;
use crate::console::insist;

/// What the standard library says about any text that is no whole number, a negative one included.
const NO_NUMBER: &str = "invalid digit found in string";

/// What is said instead.
const A_NUMBER: &str = "expected a whole number, at least 0";

/// The exit code of arguments that cannot be read.
const UNREADABLE: u8 = 2;

/// Reads the arguments, of which the first is the name of the program. The help lists the program's tasks.
///
/// # Errors
///
/// The exit code, after help, the version or an error was printed.
pub(crate) fn read(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    tasks: &[&str],
) -> Result<Cli, ExitCode> {
    let command = Cli::command().mut_subcommand("init", |init| init.after_help(after_help(tasks)));
    let mut command = with_negative_numbers(command);
    let matches = command.try_get_matches_from_mut(arguments);
    let read = matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    read.map_err(|error| told(&error.format(&mut command)))
}

/// Lets options take negative numbers, so that their own errors say what a number must be. Otherwise they would be taken
/// for unknown options.
fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_long().is_some() && arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Prints help, the version or an error, and returns the exit code.
fn told(error: &Error) -> ExitCode {
    if error.use_stderr() {
        // It quotes the arguments, so it has no colours: a terminal could not tell them from those of an argument.
        let text = error.to_string();
        let is_no_number = error.kind() == Fault::ValueValidation;
        let text = if is_no_number { text.replace(NO_NUMBER, A_NUMBER) } else { text };
        insist(text.trim_end());
        return ExitCode::from(UNREADABLE);
    }
    match error.print().and_then(|()| io::stdout().flush()) {
        Err(failed) if failed.kind() != ErrorKind::BrokenPipe => {
            insist(&format!("error: standard output: {failed}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
