//! Turns panics into errors, those that a library is known for without a message.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};
#[cfg(feature = "text")]
use std::{
    cell::Cell,
    panic::{set_hook, take_hook},
    sync::Once,
    thread,
};

/// Runs `work`; if it panics, returns the panic's message as the error.
///
/// The panic hook still runs, so the panic's location is printed as usual. Do not reuse anything that `work` was
/// changing when it panicked.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    if let Some(message) = panic.downcast_ref::<&str>() {
        (*message).to_owned()
    } else if let Some(message) = panic.downcast_ref::<String>() {
        message.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

#[cfg(feature = "text")]
thread_local! {
    /// Whether this thread expects panics and turns them into errors.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Like [`caught`], but prints nothing: for work in which a panic is not a bug of this program.
///
/// An example is a library that panics on a broken file. The error contains the panic's message; printing it as well
/// would garble a dashboard. The panic hook is global to the process, so it is replaced once, and all other panics
/// still reach the previous hook. Panics in other threads that `work` starts are still printed.
#[cfg(feature = "text")]
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
    use std::panic::panic_any;

    use super::*;

    #[test]
    fn messages() {
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".into()));
        assert_eq!(caught(|| panic!("row {}", 3)), Err::<(), _>("row 3".into()));
        let other = caught(|| panic_any(17_u8));
        assert_eq!(other, Err::<(), _>("a panic without a message".into()));
    }

    #[cfg(feature = "text")]
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
