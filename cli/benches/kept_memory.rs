//! Compares a training step on the CPU that keeps freed memory with one that returns it to the system, in turns:
//!
//! ```sh
//! cargo bench -p firebrick-cli --bench kept_memory [RUN.ron]
//! ```
//!
//! Each turn is its own process, because the setting of the C library applies to a whole process. The default run is
//! one of `examples/`. The median step of the best turn counts, because other work only adds time.

use std::io::Write;
use std::process::Command;

use clap::Parser;
use firebrick::memory::keep_freed;
use firebrick_cli::cli::Cli;

const TURNS: usize = 5;

fn main() {
    // Cargo starts a bench in the folder of its package, and the examples are read from the root.
    std::env::set_current_dir("..").expect("the crate is in a folder of the workspace");
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => compare("examples/causal_lm.ron"),
        [run] => compare(run),
        [side, run] => turn(side, run),
        _ => eprintln!("how to run it: cargo bench -p firebrick-cli --bench kept_memory [RUN.ron]"),
    }
}

/// Runs one side's steps in this process. The last line is the report.
fn turn(side: &str, run: &str) {
    if side == "kept" {
        assert!(keep_freed(), "only glibc can be told to keep what is freed");
    }
    Cli::parse_from(["firebrick", "bench", run, "--steps", "10", "--report", "json"]).run();
}

fn compare(run: &str) {
    let mut best = [f64::INFINITY; 2];
    for at in 1..=TURNS {
        for (side, best) in ["kept", "handed back"].into_iter().zip(&mut best) {
            eprint!("\rturn {at} of {TURNS}, {side:<12}");
            std::io::stderr().flush().expect("stderr takes a line");
            *best = best.min(seconds(side, run));
        }
    }
    eprintln!();
    let [kept, handed_back] = best.map(|seconds| 1e3 * seconds);
    println!("a step where freed memory is kept {kept:.1} ms, where it is handed back {handed_back:.1} ms");
    println!("ratio {:.2}", kept / handed_back);
}

/// Returns the median step of a turn.
fn seconds(side: &str, run: &str) -> f64 {
    let this = std::env::current_exe().expect("this program has a path");
    let output = Command::new(this).args([side, run]).output().expect("this program runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let report = printed.lines().last().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let seconds = report.and_then(|report| report["step_seconds_median"].as_f64());
    seconds.unwrap_or_else(|| panic!("no report:\n{printed}{}", String::from_utf8_lossy(&output.stderr)))
}
