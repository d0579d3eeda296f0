//! Where a run is shown, and the terminal while the dashboard has it, and after.

#[cfg(all(unix, feature = "tui"))]
use std::io::{IsTerminal, Write};

/// Where to show the progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Show {
    /// The full-screen dashboard if standard output is a terminal of a usual size, plain lines elsewhere.
    #[default]
    Auto,
    /// Plain lines on standard error.
    Lines,
    /// Plain lines on standard error, one for each step.
    EachStep,
    /// Nothing.
    Nothing,
}

impl Show {
    /// Whether this is the full-screen dashboard.
    pub(crate) fn is_dashboard(self) -> bool {
        cfg!(feature = "tui")
            && self == Self::Auto
            && std::io::IsTerminal::is_terminal(&std::io::stdout())
            && is_drawable()
    }
}

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

/// Bounds the size that the terminal reports while the dashboard has it.
///
/// The dashboard of burn-train looks at the size before each frame, and takes memory for all of its cells. A size that
/// cannot be drawn is therefore replaced as soon as the system tells of the change.
#[cfg(feature = "tui")]
#[derive(Debug)]
pub(crate) struct BoundedSize {
    #[cfg(unix)]
    watching: Option<(signal_hook::iterator::Handle, std::thread::JoinHandle<()>)>,
}

#[cfg(feature = "tui")]
impl BoundedSize {
    /// Bounds the size of the terminal of standard output until this is dropped.
    pub fn while_shown() -> Self {
        Self {
            #[cfg(unix)]
            watching: Self::watching(std::io::stdout()).ok(),
        }
    }

    #[cfg(unix)]
    fn watching(
        terminal: impl std::os::fd::AsFd + Send + 'static,
    ) -> std::io::Result<(signal_hook::iterator::Handle, std::thread::JoinHandle<()>)> {
        let mut changes = signal_hook::iterator::Signals::new([signal_hook::consts::SIGWINCH])?;
        let handle = changes.handle();
        let watch = move || {
            changes.forever().for_each(|_| bound_size(&terminal));
        };
        let thread = std::thread::Builder::new().name("terminal size".into()).spawn(watch)?;
        Ok((handle, thread))
    }
}

#[cfg(feature = "tui")]
impl Drop for BoundedSize {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some((handle, thread)) = self.watching.take() {
            handle.close();
            let _ = thread.join();
        }
    }
}

/// Sets a size that can be drawn, if the terminal reports one that cannot be.
#[cfg(all(unix, feature = "tui"))]
fn bound_size(terminal: &impl std::os::fd::AsFd) {
    /// Columns, and rows: together [`MOST_CELLS`].
    const MOST: u16 = 1000;
    if let Ok(mut size) = rustix::termios::tcgetwinsize(terminal)
        && !is_drawn(size.ws_col, size.ws_row)
    {
        (size.ws_col, size.ws_row) = (size.ws_col.min(MOST), size.ws_row.min(MOST));
        // If it cannot be set, there is nothing else to do.
        let _ = rustix::termios::tcsetwinsize(terminal, size);
    }
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

    /// A terminal whose size changes while it is shown.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_size_that_changes_is_bounded() {
        use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
        use signal_hook::consts::SIGWINCH;
        use signal_hook::low_level::raise;

        let open = std::fs::File::options().read(true).write(true).open("/dev/ptmx");
        let terminal = std::sync::Arc::new(open.unwrap());
        let (handle, thread) = BoundedSize::watching(terminal.clone()).unwrap();
        for (ws_col, ws_row, bounded) in
            [(80, 24, (80, 24)), (u16::MAX, u16::MAX, (1000, 1000)), (u16::MAX, 2, (u16::MAX, 2))]
        {
            tcsetwinsize(&terminal, Winsize { ws_col, ws_row, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
            // This terminal is not that of the process, so the system does not tell.
            raise(SIGWINCH).unwrap();
            let size = || tcgetwinsize(&terminal).map(|size| (size.ws_col, size.ws_row)).unwrap();
            for _ in 0..500 {
                if size() == bounded {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            assert_eq!(size(), bounded);
        }
        drop(BoundedSize { watching: Some((handle, thread)) });
    }
}
