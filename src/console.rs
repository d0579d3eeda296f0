//! Lines for whoever watches. A reader who has left is no reason to end a training run.

use std::io::{self, Write};

/// A line on standard error.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The result, on standard output.
pub(crate) fn print(text: &str) {
    let mut stdout = io::stdout();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// The columns of the terminal that standard output goes to.
pub(crate) fn terminal_width() -> Option<u16> {
    #[cfg(all(unix, feature = "tui"))]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout()) {
        return (size.ws_col >= 20).then_some(size.ws_col);
    }
    None
}
