//! Prints lines for the user. A closed pipe does not end a training run.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How much a command says besides its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Detail {
    /// Errors and warnings only.
    Quiet,
    /// What it does.
    Usual,
    /// Each step, and messages for developers.
    Verbose,
    /// Messages of all libraries too.
    Most,
}

static DETAIL: AtomicU8 = AtomicU8::new(Detail::Usual as u8);

impl Detail {
    /// Sets it for the process.
    pub fn install(self) {
        DETAIL.store(self as u8, Ordering::Relaxed);
    }

    /// Returns it for the process.
    pub fn installed() -> Self {
        let all = [Self::Quiet, Self::Usual, Self::Verbose];
        all.into_iter().find(|detail| *detail as u8 == DETAIL.load(Ordering::Relaxed)).unwrap_or(Self::Most)
    }
}

/// Prints a line on standard error that says what the program does. If it is quiet, only warnings are printed.
pub(crate) fn tell(line: &str) {
    if Detail::installed() > Detail::Quiet || line.starts_with("warning: ") {
        insist(line);
    }
}

/// Prints a line on standard error, also if the program is quiet: an error, or what a command was asked for.
pub(crate) fn insist(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints the result on standard output. [`unprinted`] returns what went wrong, at the end of the program.
pub(crate) fn print(text: &str) {
    let mut stdout = io::stdout();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        // A reader that closes a pipe has read enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => drop(UNPRINTED.set(error.to_string())),
        _ => {}
    }
}

/// The silence after which [`with_progress`] prints a line.
const SILENCE: Duration = Duration::from_secs(1);

/// Runs `work`, and prints every second on standard error what it does and for how long.
pub(crate) fn with_progress<T>(doing: &str, work: impl FnOnce() -> T) -> T {
    let (done, waits) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let begun = Instant::now();
            while waits.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                tell(&format!("{doing}: {} s so far", begun.elapsed().as_secs()));
            }
        });
        let result = work();
        drop(done);
        result
    })
}

static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Returns why a part of the result could not be printed, if one could not.
pub(crate) fn unprinted() -> Option<String> {
    UNPRINTED.get().cloned()
}

/// Returns the columns of the terminal of standard output.
pub(crate) fn terminal_width() -> Option<u16> {
    #[cfg(all(unix, feature = "tui"))]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout()) {
        return (size.ws_col >= 20).then_some(size.ws_col);
    }
    None
}

/// Prints the progress of long work on standard error, at most one line per second. Shorter work prints nothing.
pub(crate) struct Share {
    doing: &'static str,
    printed: Mutex<Instant>,
}

impl Share {
    pub fn of(doing: &'static str) -> Self {
        Self { doing, printed: Mutex::new(Instant::now()) }
    }

    pub fn tell(&self, done: u64, all: u64) {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.elapsed() >= Duration::from_secs(1) {
            *printed = Instant::now();
            tell(&format!("{} {:.0}%", self.doing, done as f64 / all.max(1) as f64 * 100.0));
        }
    }
}
