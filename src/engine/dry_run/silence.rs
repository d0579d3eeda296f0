//! Catches panics without printing them, and names the operation of Burn that panicked.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static SILENT: Cell<bool> = const { Cell::new(false) };
    /// The operation of this thread's last silent panic.
    static OPERATION: Cell<Option<String>> = const { Cell::new(None) };
}

/// A panic that was caught.
#[derive(Debug, PartialEq)]
pub struct Caught {
    /// Its message, in one line.
    pub message: String,
    /// The tensor operation that panicked, if one did and the program has symbols.
    pub operation: Option<String>,
}

/// Runs `work`. If it panics on this thread, prints nothing and returns the panic.
///
/// # Errors
///
/// The panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Caught> {
    static HOOK: Once = Once::new();
    // Installs a hook in front of the current one, once: removing it again could remove a hook that was installed
    // since.
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| match SILENT.get() {
            false => before(info),
            true => OPERATION.set(operation(&Backtrace::force_capture().to_string())),
        }));
    });
    let outer = SILENT.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    SILENT.set(outer);
    result.map_err(|panic| Caught { message: message(&*panic), operation: OPERATION.take() })
}

/// Returns the innermost operation of burn-dispatch in a backtrace, the layer that the operations of every backend pass
/// through. Users know `float_matmul` as `matmul`.
fn operation(backtrace: &str) -> Option<String> {
    let frame = backtrace.lines().find(|line| line.contains("burn_dispatch::ops::"))?;
    let is_hash = |part: &&str| part.len() == 17 && part.starts_with('h');
    let name = frame.trim().rsplit("::").find(|part| !is_hash(part))?;
    Some(name.strip_prefix("float_").unwrap_or(name).into())
}

/// Returns the text of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

/// Returns the message in one line, without the text that every failed assertion has.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = text_of(panic);
    let text = text.strip_prefix("assertion `left == right` failed: ").unwrap_or(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use burn::tensor::{FloatDType, Tensor};

    use super::*;

    #[test]
    fn a_panic_becomes_its_message_and_the_next_is_caught_too() {
        assert_eq!(caught(|| {}), Ok(()));
        let message = |work: fn()| caught(work).unwrap_err().message;
        assert_eq!(message(|| panic!("out of {}", "tune")), "out of tune");
        let failed = message(|| assert_eq!(1, 2, "matmul: dtype mismatch"));
        assert_eq!(failed, "matmul: dtype mismatch left: 1 right: 2");
        assert!(!SILENT.get());
    }

    #[test]
    fn the_operation_of_a_panic_is_found() {
        // Of the backends, this one checks dtypes when an operation is called.
        let device = burn::tensor::Device::flex();
        let failed = caught(|| {
            let half = Tensor::<1>::ones([2], &device).cast(FloatDType::F16);
            let _ = half * Tensor::<1>::ones([2], &device);
        });
        assert_eq!(failed.unwrap_err().operation.as_deref(), Some("mul"));
        assert_eq!(caught(|| panic!("no operation")).unwrap_err().operation, None);
        let legacy = "  7: burn_dispatch::ops::tensor::<impl A for B>::float_cat::h0123456789abcdef";
        assert_eq!(operation(legacy).as_deref(), Some("cat"));
    }
}
