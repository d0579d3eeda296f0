//! The threads that compute, and those that the system does not start.

use std::error::Error;
use std::{env, process, thread};

use firebrick::observe::terminal::Terminal;
use rayon::ThreadPoolBuilder;

use crate::RunError;
use crate::console::{insist, tell};
use crate::signals::remove_half_written;

/// The environment variable that sets the number of threads.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// The most threads for each core. More cost memory and the time of the system, and gain nothing.
const FOR_EACH_CORE: usize = 8;

/// How the messages begin with which the standard library and rayon panic if the system starts no thread.
const PANICS: [&str; 2] = ["failed to spawn thread", "The global thread pool has not been initialized"];

/// What to do about a thread that the system does not start.
const REMEDY: &str = "raise the limits of this process (`ulimit -u`, `ulimit -v`), or end other processes";

/// Starts the threads that compute, as many as `RAYON_NUM_THREADS` sets, within a bound, or one for each core.
///
/// # Errors
///
/// The system starts no thread.
pub(crate) fn start() -> Result<(), RunError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let asked =
        env::var(VARIABLE).ok().and_then(|text| text.parse::<usize>().ok()).filter(|asked| *asked > 0);
    let most = cores * FOR_EACH_CORE;
    // Always a number: without one, rayon would read this variable, and an older one, without a bound.
    let threads = asked.unwrap_or(cores).min(most);
    if let Some(asked) = asked.filter(|asked| *asked > threads) {
        tell(&format!(
            "warning: {VARIABLE} is {asked}, but more than {most} threads gain nothing on {cores} cores: {most} compute"
        ));
    }
    let started = ThreadPoolBuilder::new().num_threads(threads).build_global();
    match started {
        Err(error) if error.source().is_some() => {
            Err(RunError::NoThreads { threads, reason: error.to_string() })
        }
        // A program of the user's has started them before.
        _ => Ok(()),
    }
}

/// Ends the program with one line and code 1 if a panic's message says that the system starts no thread. The standard
/// library and rayon panic then, on any thread.
pub(crate) fn end_without(message: &str, terminal: &Terminal) {
    if is_of_no_thread(message) {
        terminal.restore();
        insist(&format!(
            "error: the system starts no further thread: {REMEDY}; a run that had begun is at its last checkpoint"
        ));
        remove_half_written();
        process::exit(1);
    }
}

fn is_of_no_thread(message: &str) -> bool {
    // Other libraries unwrap the error of the system, which has no other reason to ask them to try again.
    PANICS.iter().any(|begin| message.starts_with(begin)) || message.contains("kind: WouldBlock")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/program/threads.rs` has the real ones.
    #[test]
    fn only_panics_about_threads_are_known() {
        assert!(is_of_no_thread(
            "failed to spawn thread: Os { code: 11, kind: WouldBlock, message: \"..\" }"
        ));
        let unwrapped =
            "called `Result::unwrap()` on an `Err` value: Os { code: 11, kind: WouldBlock, message: \"..\" }";
        assert!(is_of_no_thread(unwrapped));
        assert!(!is_of_no_thread("index out of bounds: the len is 0"));
        assert!(!is_of_no_thread("called `Option::unwrap()` on a `None` value"));
    }
}
