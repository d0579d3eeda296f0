//! Diverging runs on the command line.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::folder_of;

const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8, valid_fraction: 0.1),
    model: Gpt(layers: 2, heads: 2, width: 16),
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Constant(lr: 1e-2),
    batch: (micro: 2),
    steps: 6,
    evaluate_every: 2,
    checkpoints: (every: 1, keep_last: 2),
    output: "out",
)
"#;

fn folder() -> TempDir {
    folder_of(RUN, 20)
}

fn train(folder: &Path, options: &[&str]) -> Command {
    let mut program = Command::cargo_bin("firebrick").unwrap();
    program.current_dir(folder).args(["train", "run.ron", "--device", "cpu"]).args(options);
    program
}

/// Makes infinite weights at once.
const INFINITE: &str = "schedule=Constant(lr: 1e39)";

/// Makes finite weights, with non-finite gradients from then on.
const LARGE: [&str; 2] = ["--set", "schedule=Constant(lr: 1e30)"];

#[test]
fn it_ends_with_advice_in_every_precision_and_exports_nothing() {
    let folder = folder();
    let skipped = "100 steps in a row were skipped (a gradient was infinite or not a number";
    for (options, words) in [
        (vec!["--set", "steps=1000"], skipped),
        (vec!["--set", "steps=1000", "--set", "strategies=[Amp(bf16)]"], skipped),
        (vec!["--set", "steps=1000", "--ranks", "2"], skipped),
        (vec!["--set", "steps=3"], skipped),
        (vec!["--set", "steps=1000", "--set", "early_stopping=2", "--set", "evaluate_every=1"], "diverged"),
        (vec!["--set", "steps=1"], "the validation loss is NaN after update 1"),
        (vec!["--set", "steps=1", "--set", "data.valid_fraction=0.0", "--set", INFINITE], "a weight in `"),
    ] {
        let run = train(folder.path(), &LARGE).args(&options).assert().code(1);
        let said =
            contains(words).and(contains("the run has diverged")).and(contains("lower the learning rate"));
        run.stderr(said.and(contains("no longer falls").not()).and(contains("panicked").not()));
        assert!(!folder.path().join("out/model.safetensors").exists(), "{options:?}");
        assert!(!folder.path().join("out/pretrained").exists(), "{options:?}");
    }
}

#[test]
fn a_sound_checkpoint_is_left_from_which_auto_goes_on() {
    // A rate of 1e30 makes finite weights, but no finite step after them; 1e39 makes infinite weights.
    for rate in ["1e30", "1e39"] {
        for keep in ["checkpoints.keep_last=1", "checkpoints.keep_last=2"] {
            for ranks in ["1", "2"] {
                let folder = folder();
                let options = ["--set", keep, "--ranks", ranks, "--set"];
                let schedule = format!("schedule=Constant(lr: {rate})");
                train(folder.path(), &options).arg("steps=4").assert().success();
                let resume = ["--resume", "auto", "--allow-changes"];
                for _ in 0..2 {
                    let mut run = train(folder.path(), &options);
                    let run = run.args(["steps=200", "--set", &schedule]).args(resume).assert().code(1);
                    run.stderr(contains("the run has diverged").and(contains("going on after update 4")));
                    assert!(folder.path().join("out/checkpoints/step-00000004").exists());
                }
                let resumed = train(folder.path(), &options).arg("steps=6").args(resume).assert().success();
                resumed.stderr(contains("going on after update 4").and(contains("passed over")));
                assert!(folder.path().join("out/model.safetensors").exists());
                let left = fs::read_dir(folder.path().join("out/checkpoints")).unwrap();
                let left = left.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
                assert_eq!(left.to_string(), keep[keep.len() - 1..], "{rate} {keep} {ranks}");
            }
        }
    }
}
