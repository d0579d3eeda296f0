//! Prints for the user. All text of the program passes through here, and [`plain`] neutralises it.
//!
//! A reader that closes the pipe has read enough: a command that only prints ends with code 0, as if it had printed the
//! rest, and a training run goes on.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use firebrick::observe::plain_text::{plain, plain_json};
use serde::Serialize;

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
    let _ = writeln!(io::stderr(), "{}", plain(line));
}

/// Prints the result on standard output. [`unprinted`] returns what went wrong, at the end of the program.
pub(crate) fn print(text: &str) {
    print_verbatim(&plain(text));
}

/// Prints a result with colours and styles, which stay. Everything else that a terminal would obey is neutralised.
pub(crate) fn print_styled(text: &str) {
    print_verbatim(&styled(text));
}

/// Prints a result as a line of JSON.
pub(crate) fn print_json(result: &impl Serialize) {
    print_verbatim(&(plain_json(&serde_json::to_string(result).unwrap_or_default()) + "\n"));
}

/// Prints a text that a model wrote: as it is, since it is the result, but neutralised on a terminal.
///
/// # Errors
///
/// It cannot be printed. If [nobody reads it](ErrorKind::BrokenPipe), there is nothing more to do.
pub(crate) fn print_written(text: &str) -> io::Result<()> {
    match io::stdout().is_terminal() {
        true => write_out(&plain(text)),
        false => write_out(text),
    }
}

fn print_verbatim(text: &str) {
    match write_out(text) {
        // A reader that closes a pipe has read enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => drop(UNPRINTED.set(error.to_string())),
        _ => {}
    }
}

fn write_out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

/// Returns the text with the commands that set colours and styles, and with everything else [plain].
pub(crate) fn styled(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut styled = plain(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_digit() && letter != ';');
        let is_style = end.is_some_and(|end| part[end..].starts_with('m'));
        styled += if is_style { "\u{1b}[" } else { "\\u{1b}[" };
        styled += &plain(part);
    }
    styled
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

/// The most columns of a line. A terminal may report any number.
const WIDEST: u16 = 10_000;

/// Returns the columns of the terminal of standard output.
pub(crate) fn terminal_width() -> Option<u16> {
    #[cfg(all(unix, feature = "tui"))]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout()) {
        return (size.ws_col >= 20).then_some(size.ws_col.min(WIDEST));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_stay_and_other_commands_do_not() {
        let bold = "\u{1b}[1mloss\u{1b}[0m \u{1b}[1;32m0.5\u{1b}[m";
        assert_eq!(styled(bold), bold);
        let hostile = "\u{1b}[2J\u{1b}]0;pwned\u{7}\u{1b}[31mred\u{1b}[";
        assert_eq!(styled(hostile), "\\u{1b}[2J\\u{1b}]0;pwned\\u{7}\u{1b}[31mred\\u{1b}[");
    }
}
