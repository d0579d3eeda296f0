//! The variable `BURN_DEVICE`, which this program and Burn both read.

#![allow(unsafe_code)] // Changing a variable is unsafe beside other threads.

use std::env;

const VARIABLE: &str = "BURN_DEVICE";

/// Gives the variable, once the arguments have been read, a value that Burn knows: it calls the CPU `flex`, knows no
/// index and no `auto`, and panics at any other name when it first asks for its default device.
///
/// Does nothing if the process has other threads, or if it cannot be known.
pub(crate) fn translate() {
    let Some(named) = env::var_os(VARIABLE) else { return };
    if !is_alone() {
        return;
    }
    // SAFETY: no other thread reads or writes variables, because there is none.
    unsafe {
        match of_burn(&named.to_string_lossy()) {
            Some(name) => env::set_var(VARIABLE, name),
            None => env::remove_var(VARIABLE),
        }
    }
}

/// Returns what Burn calls the backend of a device that this program knows by this name.
fn of_burn(name: &str) -> Option<&'static str> {
    match name.split(':').next()? {
        "cpu" | "flex" => Some("flex"),
        "cuda" if cfg!(feature = "cuda") => Some("cuda"),
        "rocm" if cfg!(feature = "rocm") => Some("rocm"),
        "metal" if cfg!(feature = "metal") => Some("metal"),
        "vulkan" if cfg!(feature = "vulkan") => Some("vulkan"),
        "wgpu" if cfg!(feature = "wgpu") => Some("wgpu"),
        _ => None,
    }
}

/// Whether this is the only thread of the process.
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(test)]
mod tests {
    use super::of_burn;

    #[test]
    fn what_burn_does_not_know_is_not_left_to_it() {
        assert_eq!(["cpu", "cpu:0", "flex"].map(of_burn), [Some("flex"); 3]);
        assert_eq!(["auto", "tpu", "", ":"].map(of_burn), [None; 4]);
    }
}
