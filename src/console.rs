//! Lines for whoever watches. A reader who has left is no reason to end a training run.

use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A line on standard error.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The result, on standard output. What cannot be printed is [told](unprinted) where the program ends.
pub(crate) fn print(text: &str) {
    let mut stdout = io::stdout();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        // Who closes a pipe has read enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => drop(UNPRINTED.set(error.to_string())),
        _ => {}
    }
}

static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Why a part of the result is not on standard output, if one is not.
pub(crate) fn unprinted() -> Option<String> {
    UNPRINTED.get().cloned()
}

/// The columns of the terminal that standard output goes to.
pub(crate) fn terminal_width() -> Option<u16> {
    #[cfg(all(unix, feature = "tui"))]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout()) {
        return (size.ws_col >= 20).then_some(size.ws_col);
    }
    None
}

/// How much of something long is done, on standard error: a line at most once a second, and none of what is over
/// sooner.
pub(crate) struct Share {
    doing: &'static str,
    told: Mutex<Instant>,
}

impl Share {
    pub fn of(doing: &'static str) -> Self {
        Self { doing, told: Mutex::new(Instant::now()) }
    }

    pub fn tell(&self, done: u64, all: u64) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= Duration::from_secs(1) {
            *told = Instant::now();
            tell(&format!("{} {:.0}%", self.doing, done as f64 / all.max(1) as f64 * 100.0));
        }
    }
}
