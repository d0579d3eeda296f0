//! The terminal while the dashboard has it, and after.

#[cfg(all(unix, feature = "tui"))]
use std::io::{IsTerminal, Write};

/// Lets Ctrl-C reach the process while the dashboard has the terminal in raw mode, where it would be a key that the
/// dashboard ignores. The dashboard sets the mode on its own thread, so call this at each step; it costs one system
/// call.
#[cfg(all(unix, feature = "tui"))]
pub(crate) fn let_ctrl_c_interrupt() {
    use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
    let stdin = std::io::stdin();
    if let Ok(mut mode) = tcgetattr(&stdin)
        && !mode.local_modes.contains(LocalModes::ISIG)
    {
        mode.local_modes.insert(LocalModes::ISIG);
        // Suspending or quitting would leave the terminal in raw mode. 0 disables those keys.
        mode.special_codes[SpecialCodeIndex::VSUSP] = 0;
        mode.special_codes[SpecialCodeIndex::VQUIT] = 0;
        let _ = tcsetattr(&stdin, OptionalActions::Now, &mode);
    }
}

/// Does nothing without a terminal in raw mode.
#[cfg(all(not(unix), feature = "tui"))]
pub(crate) fn let_ctrl_c_interrupt() {}

/// Redirects standard error through a pipe while the dashboard has the terminal.
///
/// If the terminal is closed, every write to it fails. A line on standard error that cannot be printed while the
/// dashboard's thread unwinds would abort the program before it could save the run. So the lines go into a pipe, and on
/// to the terminal as long as it exists.
#[cfg(feature = "tui")]
#[derive(Debug)]
pub(crate) struct SafeErrors {
    #[cfg(unix)]
    terminal: Option<(std::fs::File, std::thread::JoinHandle<()>)>,
}

#[cfg(feature = "tui")]
impl SafeErrors {
    /// Redirects until this is dropped. Does nothing if standard error is no terminal.
    pub fn while_shown() -> Self {
        Self {
            #[cfg(unix)]
            terminal: Self::piped().ok().flatten(),
        }
    }

    #[cfg(unix)]
    fn piped() -> std::io::Result<Option<(std::fs::File, std::thread::JoinHandle<()>)>> {
        use std::io::Read;
        use std::os::fd::AsFd;
        if !std::io::stderr().is_terminal() {
            return Ok(None);
        }
        let terminal = std::fs::File::from(std::io::stderr().as_fd().try_clone_to_owned()?);
        let (mut reader, writer) = std::io::pipe()?;
        let mut shown = terminal.try_clone()?;
        let hand_on = std::thread::Builder::new().name("standard error".into()).spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                // The terminal may be gone, but the pipe must be emptied.
                let _ = shown.write_all(&bytes[..length]);
            }
        })?;
        rustix::stdio::dup2_stderr(&writer)?;
        Ok(Some((terminal, hand_on)))
    }
}

#[cfg(feature = "tui")]
impl Drop for SafeErrors {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some((terminal, hand_on)) = self.terminal.take()
            // The pipe ends with its last writer.
            && rustix::stdio::dup2_stderr(&terminal).is_ok()
        {
            let _ = hand_on.join();
        }
    }
}

/// The most cells of a screen that is drawn. The largest screens have a tenth, and each cell takes some 50 bytes.
#[cfg(all(unix, feature = "tui"))]
const MOST_CELLS: u32 = 1_000_000;

/// Returns whether the terminal of standard output has a size that can be drawn. A terminal may report any size, up to
/// 65,535 columns and rows, for whose cells no memory would be enough.
pub fn is_drawable() -> bool {
    #[cfg(all(unix, feature = "tui"))]
    if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdout()) {
        return is_drawn(size.ws_col, size.ws_row);
    }
    true
}

#[cfg(all(unix, feature = "tui"))]
fn is_drawn(columns: u16, rows: u16) -> bool {
    u32::from(columns) * u32::from(rows) <= MOST_CELLS
}

/// The state of the terminal before the dashboard.
pub struct Terminal {
    #[cfg(all(unix, feature = "tui"))]
    mode: Option<rustix::termios::Termios>,
}

impl Terminal {
    /// Records the current state of the terminal.
    pub fn now() -> Self {
        Self {
            #[cfg(all(unix, feature = "tui"))]
            mode: rustix::termios::tcgetattr(std::io::stdin()).ok(),
        }
    }

    /// Restores the state, and leaves the full screen.
    pub fn restore(&self) {
        #[cfg(all(unix, feature = "tui"))]
        if let Some(mode) = &self.mode
            && std::io::stdout().is_terminal()
        {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, mode);
            // Mouse reports off, main screen, cursor on.
            let mut stdout = std::io::stdout();
            let sequence = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1049l\x1b[?25h";
            let _ = stdout.write_all(sequence).and_then(|()| stdout.flush());
        }
    }
}

#[cfg(all(test, unix, feature = "tui"))]
mod tests {
    use super::*;

    #[test]
    fn the_size_that_a_terminal_reports_is_bounded() {
        assert!(is_drawn(80, 24) && is_drawn(1000, 300) && is_drawn(0, 0) && is_drawn(u16::MAX, 2));
        assert!(!is_drawn(u16::MAX, u16::MAX) && !is_drawn(2000, 2000));
    }
}
