//! Panics that are caught and not printed.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. Where it panics on this thread, nothing is printed, and the message is returned.
pub(super) fn caught(work: impl FnOnce()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    // Put in place once and for all, in front of the hook that is there: taking it out again could
    // take out another's.
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !SILENT.get() {
                before(info);
            }
        }));
    });
    let outer = SILENT.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    SILENT.set(outer);
    result.map_err(|panic| message(&*panic))
}

/// The message in one line, without what every failed assertion says.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    let text = text.strip_prefix("assertion `left == right` failed: ").unwrap_or(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message_and_the_next_is_caught_too() {
        assert_eq!(caught(|| {}), Ok(()));
        assert_eq!(caught(|| panic!("out of {}", "tune")), Err("out of tune".into()));
        let failed = caught(|| assert_eq!(1, 2, "matmul: dtype mismatch"));
        assert_eq!(failed, Err("matmul: dtype mismatch left: 1 right: 2".into()));
        assert!(!SILENT.get());
    }
}
