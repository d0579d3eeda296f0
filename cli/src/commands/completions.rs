//! The command `completions`: completes commands and options in a shell.

use std::env;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::console::print;

const EXAMPLES: &str = "\
Examples:
  source <(firebrick completions bash)                                  # in ~/.bashrc
  source <(firebrick completions zsh)                                   # in ~/.zshrc, after compinit
  firebrick completions fish > ~/.config/fish/completions/firebrick.fish
  firebrick completions powershell | Out-String | Invoke-Expression     # in $PROFILE";

/// `firebrick completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs `firebrick completions`: prints the script for a program whose commands are those of `command`.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) {
    // A program of your own has another name.
    let program = env::current_exe().ok().and_then(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let program = program.unwrap_or_else(|| command.get_name().to_owned());
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, program, &mut script);
    print(&String::from_utf8_lossy(&script));
}
