//! Threads that the system does not start, and more of them than compute.

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
