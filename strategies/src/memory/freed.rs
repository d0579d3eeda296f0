//! Memory that was freed, and is asked for again.

#![allow(unsafe_code)] // A call of the C library; it says why it is sound.

/// Keeps what is freed for what is asked for next, for the rest of the process. Without it, glibc hands large blocks
/// back to the system at once, which clears each of their pages again at its next use: a training step frees its
/// activations and asks for as many in the next, and was 11 to 17% longer for a GPT of 10.8M parameters on two cores
/// (`cargo bench --bench kept_memory` compares on any machine). The process holds some percent more memory, as far as
/// blocks of several sizes do not fit each other's places.
///
/// `false` where there is nothing to tell: the C library is not glibc, or refuses. The program `firebrick` begins with
/// it; a program of yours on the CPU may.
///
/// ```
/// let glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
/// assert_eq!(firebrick_strategies::memory::keep_freed(), glibc);
/// ```
pub fn keep_freed() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets two numbers of the allocator, under its lock.
    return [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD]
        .into_iter()
        .all(|threshold| unsafe { libc::mallopt(threshold, libc::c_int::MAX) } == 1);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}
