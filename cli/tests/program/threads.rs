//! Threads that the system does not start, more of them than compute, and memory that it does not give.

#[cfg(target_os = "linux")]
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Command;

#[cfg(target_os = "linux")]
use assert_cmd::cargo::cargo_bin;
use predicates::prelude::*;
use predicates::str::contains;

use crate::small_run::{RUN, firebrick, folder_of, train};

/// Each thread asks for a stack that no address space has.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_thread_that_is_not_started_is_one_line_and_code_1() {
    let folder = folder_of(RUN, 40);
    for arguments in [&["train", "run.ron"][..], &["data", "run.ron"], &["devices"]] {
        let mut command = firebrick(folder.path());
        let failed = command.args(arguments).env("RUST_MIN_STACK", (1_u64 << 50).to_string());
        let failed = failed.assert().code(1).stderr(contains("error: ").and(contains("ulimit")));
        let said = String::from_utf8(failed.get_output().stderr.clone()).unwrap();
        assert!(said.lines().count() == 1 && !said.contains("panicked"), "{said}");
    }
}

#[test]
fn the_threads_that_compute_are_bounded() {
    let folder = folder_of(RUN, 40);
    let mut many = train(folder.path(), &["--steps", "2"]);
    let many = many.env("RAYON_NUM_THREADS", "100000").assert().success();
    many.stderr(contains("warning: RAYON_NUM_THREADS is 100000").count(1));
    let mut few = train(folder.path(), &["--steps", "2"]);
    few.env("RAYON_NUM_THREADS", "2").assert().success().stderr(contains("RAYON_NUM_THREADS").not());
}

/// Runs two steps within so many KB of address space, and returns the exit code and standard error. A signal has no code.
#[cfg(target_os = "linux")]
fn within(kilobytes: u32, folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let script = format!("ulimit -v {kilobytes} && exec \"$0\" train run.ron --plain --steps 2 \"$@\"");
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(script).arg(cargo_bin("firebrick")).args(arguments).current_dir(folder);
    // As many threads on every machine, and one line for an allocation that fails.
    let output = limited.env("RAYON_NUM_THREADS", "2").env("RUST_BACKTRACE", "0").output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Little memory ends the program with code 1, wherever it is missing: in a value, or in a thread's stack. Where the C library
/// lacks some for itself, such as for what a thread does at its end, it says so and aborts.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_code_1() {
    let folder = folder_of(RUN, 40);
    let wide = ["--set", "model=Gpt(layers: 2, heads: 2, width: 4096)"];
    let (code, said) = within(500_000, folder.path(), &wide);
    assert_eq!(code, Some(1), "{said}");
    // The standard library may add a note.
    let mut lines = said.lines();
    assert!(
        lines.any(|line| line.starts_with("memory allocation of ") || line.starts_with("error: ")),
        "{said}"
    );
    for kilobytes in (240_000..700_000).step_by(46_000) {
        let output = format!("out-{kilobytes}");
        let (code, said) = within(kilobytes, folder.path(), &["--output", &output]);
        let is_of_library = code.is_none() && said.contains("glibc") && said.contains("out of memory");
        let is_known = matches!(code, Some(0 | 1)) || is_of_library;
        assert!(is_known && !said.contains("panicked"), "{kilobytes} KB: {code:?} {said}");
    }
}
