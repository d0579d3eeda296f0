//! The exit codes of the program.

use std::process::ExitCode;

use crate::RunError;
use crate::console::{insist, unprinted};
use crate::signals;
use crate::signals::Signal;

/// The codes, as `--help` shows them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  everything that was asked for was done, or as much of it as was read, by a command such as `head`
    1  it was not, and standard error says why; a run ended or went on although a checkpoint, its metrics or another
       file could not be written; a checkpoint is damaged; `checkpoint diff` found a difference; `devices --check` found
       a wrong kernel
    2  the command line cannot be read
  129  the terminal was closed (SIGHUP); 130  Ctrl-C (SIGINT), or q and s on the dashboard; 143  SIGTERM: a run is
       saved first, and standard error says after which update";

/// How a command without an error ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything that was asked for was done.
    Done,
    /// Two compared checkpoints differ.
    Differs,
    /// A kernel of a device is wrong.
    Wrong,
    /// A signal ended the command early.
    Interrupted(Signal),
}

impl Exit {
    /// Returns the exit code of a command, and prints an error on standard error.
    pub fn code(result: Result<Self, RunError>) -> ExitCode {
        ExitCode::from(match result {
            Ok(exit) => exit.number(),
            // What was read of the result was all that was wanted.
            Err(RunError::Unread) => 0,
            Err(error @ (RunError::Interrupted | RunError::NoSample(_))) => {
                insist(&format!("error: {error}"));
                signals::received().unwrap_or(Signal::Interrupt).exit_code()
            }
            Err(error) => {
                insist(&format!("error: {error}"));
                1
            }
        })
    }

    /// Returns the exit code of a command without an error.
    pub fn number(self) -> u8 {
        self.number_with(unprinted())
    }

    /// `unprinted` is the reason why a part of the result could not be printed, if there is one.
    fn number_with(self, unprinted: Option<String>) -> u8 {
        match (self, unprinted) {
            (Self::Interrupted(signal), _) => signal.exit_code(),
            (_, Some(reason)) => {
                insist(&format!("error: the result cannot be printed on standard output: {reason}"));
                1
            }
            (Self::Done, None) => 0,
            (Self::Differs | Self::Wrong, None) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_code() {
        assert_eq!(Exit::Done.number_with(None), 0);
        assert_eq!(Exit::Done.number_with(Some("the disk is full".into())), 1);
        assert_eq!(Exit::Differs.number_with(None), 1);
        assert_eq!(Exit::Wrong.number_with(None), 1);
        for (signal, code) in [(Signal::HangUp, 129), (Signal::Interrupt, 130), (Signal::Terminate, 143)] {
            assert_eq!(Exit::Interrupted(signal).number_with(Some("hung up".into())), code);
            assert!(EXIT_CODES.contains(&code.to_string()));
        }
    }
}
