//! What the program prints of a panic.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{PanicHookInfo, set_hook};
use std::sync::Once;
use std::thread;

use firebrick::observe::terminal::Terminal;

use crate::console::insist;
use crate::threads;

/// Prints panics as the standard library does, but neutralised: a message may quote data, or the name of a tensor. If the
/// system starts no thread, the program ends instead.
pub(crate) fn print_neutralised() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let terminal = Terminal::now();
        set_hook(Box::new(move |panic| {
            threads::end_without(panic.payload_as_str().unwrap_or_default(), &terminal);
            insist(&text_of(panic));
        }));
    });
}

fn text_of(panic: &PanicHookInfo<'_>) -> String {
    let current = thread::current();
    let thread = current.name().unwrap_or("<unnamed>");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let message = panic.payload_as_str().unwrap_or("a value that is no text");
    let backtrace = Backtrace::capture();
    let end = match backtrace.status() {
        BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}"),
        _ => "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace".into(),
    };
    format!("\nthread '{thread}' panicked at {place}:\n{message}\n{end}")
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;

    /// Tells the process of this test from the one that panics for it.
    const PANICS: &str = "PANICS_FOR_A_TEST";

    #[test]
    fn a_panic_is_printed_as_usual_but_for_commands_to_the_terminal() {
        if env::var_os(PANICS).is_some() {
            print_neutralised();
            panic!("no tensor `\u{1b}]0;pwned\u{7}`\nsecond line");
        }
        let mut other = Command::new(env::current_exe().unwrap());
        let name = "panics::tests::a_panic_is_printed_as_usual_but_for_commands_to_the_terminal";
        let output =
            other.args(["--exact", name]).env(PANICS, "").env("RUST_BACKTRACE", "1").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("panicked at ") && said.contains("panics.rs:"), "{said}");
        assert!(
            said.contains("no tensor `\\u{1b}]0;pwned\\u{7}`\nsecond line\nstack backtrace:\n"),
            "{said}"
        );
        assert!(!said.contains(['\u{1b}', '\u{7}']), "{said}");
    }
}
