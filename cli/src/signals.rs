//! Signal handling: a signal ends a run after the current step and saves it, and ends other commands at once.

use std::mem;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use burn::train::Interrupter;

use crate::console::insist;
use firebrick::observe::terminal::Terminal;
use firebrick::saving;
use firebrick_datasets::hold_writes;

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

    /// Returns the exit code after this signal, as shells count: 128 plus its number.
    pub fn exit_code(self) -> u8 {
        128 + self as u8
    }

    /// Returns the signal's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::HangUp => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

/// The number of the first signal; 0 before.
static FIRST: AtomicU8 = AtomicU8::new(0);

/// Returns the first signal, if there was one.
pub(crate) fn received() -> Option<Signal> {
    let number = FIRST.load(Ordering::SeqCst);
    Signal::ALL.into_iter().find(|signal| *signal as u8 == number)
}

/// Returns an interrupter that stops at the next step on Ctrl-C, SIGTERM or a closed terminal. A second signal ends the
/// program at once, and so does the end of the `grace` period.
pub(crate) fn interrupter(grace: Option<Duration>) -> Interrupter {
    let interrupter = Interrupter::new();
    let stop = interrupter.clone();
    let terminal = Arc::new(Terminal::now());
    let mut again = false;
    listen(move |signal| {
        if again {
            // On a second request, wait for nothing.
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
                insist(&format!(
                    "error: the run did not end within its {seconds} s of grace: it is at its last checkpoint"
                ));
                end(signal);
            });
        }
    });
    interrupter
}

/// Ends the program at once on a signal, and removes half-written files.
pub(crate) fn end_at_once() {
    listen(|signal| end(signal));
}

fn end(signal: Signal) -> ! {
    remove_half_written();
    process::exit(signal.exit_code().into())
}

/// Removes the files that this process has not written to their end. Call it right before the process ends: whatever would
/// write another file waits from then on.
pub(crate) fn remove_half_written() {
    mem::forget(hold_writes());
    firebrick_checkpoints::remove_staged();
    saving::remove_staged();
}

/// Calls `hear` for each signal, on its own thread. If the handler cannot be installed, a signal ends the program at
/// once, as usual.
#[cfg(unix)]
fn listen(mut hear: impl FnMut(Signal) + Send + 'static) {
    let wanted = Signal::ALL.into_iter().filter(|signal| *signal != Signal::HangUp || !ignores_hang_up());
    let Ok(mut signals) = signal_hook::iterator::Signals::new(wanted.map(|signal| signal as i32)) else {
        return;
    };
    let heard = move || {
        for number in signals.forever() {
            if let Some(signal) = Signal::ALL.into_iter().find(|signal| *signal as i32 == number) {
                let _ = FIRST.compare_exchange(0, signal as u8, Ordering::SeqCst, Ordering::SeqCst);
                hear(signal);
            }
        }
    };
    // A program that could not be ended by a signal would be worse than one that does not start: this panics, which ends
    // it with an error.
    thread::spawn(heard);
}

#[cfg(not(unix))]
fn listen(mut hear: impl FnMut(Signal) + Send + 'static) {
    let _ = ctrlc::set_handler(move || {
        FIRST.store(Signal::Interrupt as u8, Ordering::SeqCst);
        hear(Signal::Interrupt);
    });
}

/// Returns whether the program was started to outlive its terminal, as with `nohup`. Only known on Linux.
#[cfg(unix)]
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}
