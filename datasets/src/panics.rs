//! A panic as an error.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
    thread,
};

thread_local! {
    /// Whether panics of this thread are expected, and end as an error.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`; if it panics, the error is what the panic said.
///
/// The panic hook still runs, so the place of the panic is printed as usual. What `work` was
/// changing when it panicked must not be used again.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

/// As [`caught`], but nothing is printed: for work in which a panic is no bug of this program.
///
/// A library that panics on a broken file is such work. Its message is in the error; printed as
/// well, it would tear up a dashboard. The panic hook belongs to the whole process, so it is
/// changed once, and all other panics still reach the hook that was there before. Panics of other
/// threads that `work` starts are printed.
pub(crate) fn caught_silently<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // A thread that panics already may not touch the hook.
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

fn message(panic: &(dyn Any + Send)) -> String {
    if let Some(message) = panic.downcast_ref::<&str>() {
        (*message).to_owned()
    } else if let Some(message) = panic.downcast_ref::<String>() {
        message.clone()
    } else {
        "a panic without a message".to_owned()
    }
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

    #[test]
    fn expected_only_within() {
        let within = caught_silently(|| {
            let inner = caught_silently(|| panic!("inner"));
            assert_eq!(inner, Err::<(), _>("inner".into()));
            EXPECTED.get()
        });
        assert_eq!(within, Ok(true));
        assert!(!EXPECTED.get());
    }
}
