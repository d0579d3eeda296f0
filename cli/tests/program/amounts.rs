//! Sizes that no machine can hold are refused before anything is allocated, with the bytes that they would take.

use assert_cmd::Command;

use crate::small_run::at_root;
use predicates::prelude::*;
use predicates::str::contains;

/// A text that is read quickly.
const SHORT: &str = "data.path=\"README.md\"";

fn firebrick(args: &[&str]) -> Command {
    let mut program = at_root();
    program.args(args).args(["--device", "cpu"]);
    program
}

#[test]
fn of_a_run() {
    let output = tempfile::tempdir().unwrap();
    let place = format!("output={:?}", output.path().join("run"));
    let large = "needs at least ";
    for (example, setting, expected) in [
        ("token_classification", "data.padding=(multiple_of: 1000000)", large),
        ("token_classification", "model.width=100000", large),
        (
            "token_classification",
            "data.max_length=1000001",
            "at most a million tokens for a fresh `Bert`, which limits",
        ),
        ("causal_lm", "ranks=1000", "`ranks` must be at most 256 in a process"),
        ("causal_lm", "ranks=200000", "`ranks` must be at least 1 and at most 100000"),
        ("causal_lm", "batch.micro=3000000000", "`batch.micro` must be at least 1 and at most a billion"),
    ] {
        let file = format!("examples/{example}.ron");
        let sets = ["--set", &place, "--set", setting, "--set", SHORT];
        let sets = if example == "causal_lm" { &sets[..] } else { &sets[..4] };
        let run = firebrick(&[&["train", &file], sets].concat()).assert().code(1);
        run.stderr(contains(expected).and(contains("panicked").not()));
    }
    assert!(!output.path().join("run").exists(), "nothing was begun");
}

#[test]
fn of_texts() {
    let output = tempfile::tempdir().unwrap();
    let run = output.path().join("run").to_str().unwrap().to_owned();
    let place = format!("output={run:?}");
    let short = ["steps=1", "schedule=Constant(lr: 1e-3)", "sample=None", "data.block=16", SHORT];
    let sets = short.iter().chain([&place.as_str()]).flat_map(|set| ["--set", set]).collect::<Vec<_>>();
    firebrick(&[&["train", "examples/causal_lm.ron"], sets.as_slice()].concat()).assert().success();
    let many = ["generate", &run, "--prompt", "a", "--ranks", "1000"];
    let refused = contains("`ranks` must be at most 256 in a process").and(contains("take at least 8.4 GB"));
    firebrick(&many).assert().code(1).stderr(refused);
    for (amount, needed) in [
        ("--returned", "1000000000000 texts of up to 129 tokens at once need "),
        ("--max-new-tokens", "1 texts of up to 1000000000001 tokens at once need "),
    ] {
        let asked = ["generate", &run, "--prompt", "a", amount, "1000000000000", "--temperature", "1"];
        let error = contains(needed).and(contains("lower the decoding's `beams`, `returned`"));
        firebrick(&asked).assert().code(1).stderr(error);
    }
    let asked = ["generate", &run, "--prompt", "a", "--beams", "100000"];
    let bound = contains("`beams` must be at most ").and(contains("found 100000: "));
    firebrick(&asked).assert().code(1).stderr(bound);
}
