//! Turns panics into errors.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
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
}
