//! What the program does if the system gives it no memory.
//!
//! The standard library prints how many bytes were asked for, and aborts. A signal that this makes is all that stable Rust
//! lets a program see of it.

/// Makes the program end with code 1 if memory for a value cannot be allocated, where signals exist and the program has
/// [`Counting`](firebrick::memory::Counting) as its allocator. All other aborts stay what they are.
pub(crate) fn end_with_code() {
    #[cfg(unix)]
    {
        use signal_hook::consts::SIGABRT;
        use signal_hook::flag::register_conditional_shutdown;

        // If it cannot be registered, the program aborts as before.
        let _ = register_conditional_shutdown(SIGABRT, 1, firebrick::memory::has_failed());
    }
}
