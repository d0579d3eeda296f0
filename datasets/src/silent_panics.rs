//! Turns the panics that a library is known for into errors, without a message.

use std::{
    cell::Cell,
    panic::{set_hook, take_hook},
    sync::Once,
    thread,
};

use crate::panics::caught;

thread_local! {
    /// Whether this thread expects panics and turns them into errors.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Like [`caught`], but prints nothing: for work in which a panic is not a bug of this program.
///
/// An example is a library that panics on a broken file. The error contains the panic's message; printing it as well
/// would garble a dashboard. The panic hook is global to the process, so it is replaced once, and all other panics
/// still reach the previous hook. Panics in other threads that `work` starts are still printed.
pub(crate) fn caught_silently<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // A panicking thread may not change the hook.
    if !thread::panicking() {
        HOOK.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |panic| {
                if !EXPECTED.try_with(Cell::get).unwrap_or(false) {
                    before(panic);
                }
            }));
        });
    }
    let outer = EXPECTED.replace(true);
    let result = caught(work);
    EXPECTED.set(outer);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_silent_only_within() {
        let within = caught_silently(|| {
            let inner = caught_silently(|| panic!("inner"));
            assert_eq!(inner, Err::<(), _>("inner".into()));
            EXPECTED.get()
        });
        assert_eq!(within, Ok(true));
        assert!(!EXPECTED.get());
    }
}
