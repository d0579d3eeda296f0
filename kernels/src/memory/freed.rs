//! Reuse of freed memory.

#![allow(unsafe_code)] // One call of the C library, justified below.

/// Keeps freed memory for later allocations, for the rest of the process. By default, glibc returns large blocks to the
/// system at once, and the system clears each of their pages again at the next use. A training step frees its
/// activations and allocates the same amount in the next step: without this call it took 11 to 17% longer for a GPT of
/// 10.8M parameters on two cores (`cargo bench --bench kept_memory` compares on any machine). The process holds a few
/// percent more memory, because blocks of different sizes do not fit each other's places.
///
/// glibc gives each thread a heap of at most 64 MiB, and still returns blocks that do not fit in it. With
/// `MALLOC_ARENA_MAX=1` in the environment, all threads use one heap without a limit. Where several ranks of a process exchange
/// large tensors, steps are then a few percent faster; but threads that tokenize in parallel wait for each other, and take twice as long.
///
/// Returns `false` if it has no effect: the C library is not glibc, or rejects the setting. The program `firebrick`
/// calls it at the start; your own CPU program may do the same.
///
/// ```
/// let glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
/// assert_eq!(firebrick_kernels::memory::keep_freed(), glibc);
/// ```
pub fn keep_freed() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets two parameters of the allocator, under the allocator's lock.
    return [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD]
        .into_iter()
        .all(|threshold| unsafe { libc::mallopt(threshold, libc::c_int::MAX) } == 1);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}
