//! What signals do: they stop a run at the next step, saved, and end other commands at once.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use burn::train::Interrupter;

use crate::console::tell;
use crate::dashboard::Terminal;
use crate::saving::remove_staged;

/// A signal that asks the program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Signal {
    /// SIGHUP: the terminal was closed.
    HangUp = 1,
    /// SIGINT: Ctrl-C.
    Interrupt = 2,
    /// SIGTERM.
    Terminate = 15,
}

impl Signal {
    const ALL: [Self; 3] = [Self::HangUp, Self::Interrupt, Self::Terminate];

    /// The exit code of a program that it ended, as shells count: 128 and its number.
    pub fn exit_code(self) -> u8 {
        128 + self as u8
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::HangUp => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

/// The number of the first signal that came; 0 before.
static TOLD: AtomicU8 = AtomicU8::new(0);

/// The first signal that came, if one did.
pub(crate) fn received() -> Option<Signal> {
    let number = TOLD.load(Ordering::SeqCst);
    Signal::ALL.into_iter().find(|signal| *signal as u8 == number)
}

/// Stops at the next step when Ctrl-C is pressed, the terminal is closed or the process is told to end (SIGTERM), and
/// at once when that is said again, or when it takes longer than the time of grace.
pub(crate) fn interrupter(grace: Option<Duration>) -> Interrupter {
    let interrupter = Interrupter::new();
    let stop = interrupter.clone();
    let terminal = Arc::new(Terminal::now());
    let mut again = false;
    listen(move |signal| {
        if again {
            // Asked for the second time: whatever is still being done is not waited for.
            terminal.restore();
            end(signal);
        }
        again = true;
        stop.stop(Some(&format!("interrupted by {}", signal.name())));
        if let Some(grace) = grace {
            let terminal = terminal.clone();
            thread::spawn(move || {
                thread::sleep(grace);
                terminal.restore();
                let seconds = grace.as_secs();
                tell(&format!(
                    "error: the run did not end within its {seconds} s of grace: it is at its last checkpoint"
                ));
                end(signal);
            });
        }
    });
    interrupter
}

/// Ends the program at once when it is told to, without a half of a file.
pub(crate) fn end_at_once() {
    listen(|signal| end(signal));
}

fn end(signal: Signal) -> ! {
    remove_staged();
    process::exit(signal.exit_code().into())
}

/// Calls `hear` for each signal, on a thread of its own. Without one the system's way is left: the program ends at
/// once.
#[cfg(unix)]
fn listen(mut hear: impl FnMut(Signal) + Send + 'static) {
    let wanted = Signal::ALL.into_iter().filter(|signal| *signal != Signal::HangUp || !ignores_hang_up());
    let Ok(mut signals) = signal_hook::iterator::Signals::new(wanted.map(|signal| signal as i32)) else {
        return;
    };
    let heard = move || {
        for number in signals.forever() {
            if let Some(signal) = Signal::ALL.into_iter().find(|signal| *signal as i32 == number) {
                let _ = TOLD.compare_exchange(0, signal as u8, Ordering::SeqCst, Ordering::SeqCst);
                hear(signal);
            }
        }
    };
    let _ = thread::Builder::new().name("signals".into()).spawn(heard);
}

#[cfg(not(unix))]
fn listen(mut hear: impl FnMut(Signal) + Send + 'static) {
    let _ = ctrlc::set_handler(move || {
        TOLD.store(Signal::Interrupt as u8, Ordering::SeqCst);
        hear(Signal::Interrupt);
    });
}

/// Whether the program was started to outlive its terminal, as `nohup` does. Elsewhere than on Linux that is not known.
#[cfg(unix)]
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}
