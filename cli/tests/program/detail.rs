//! How much commands say: `--quiet`, the usual, and `--verbose`.

use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::{contains, is_empty};

use crate::small_run::{firebrick, folder, train};

fn said(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

#[test]
fn a_quiet_run_prints_its_result_only() {
    let folder = folder();
    // On the CPU: a GPU's driver that is looked for may print what it likes.
    let mut quiet = train(folder.path(), &["--quiet", "--steps", "4", "--device", "cpu"]);
    quiet.assert().success().stderr(is_empty()).stdout(contains("\"valid_loss\""));
    let plan = ["plan", "run.ron", "-q", "--device", "cpu"];
    firebrick(folder.path()).args(plan).assert().success().stderr(is_empty());
    let both = ["train", "run.ron", "-q", "-v"];
    firebrick(folder.path()).args(both).assert().code(2).stderr(contains("cannot be used with"));
    // Errors and warnings are printed all the same.
    let wrong = ["train", "run.ron", "-q", "--set", "data.path=none.txt"];
    firebrick(folder.path())
        .args(wrong)
        .assert()
        .code(1)
        .stderr(contains("error: ").and(contains("none.txt")));
    assert!(said(&train(folder.path(), &["--steps", "4"]).assert().success()).contains("reading text.txt"));
}

/// Off a terminal, a line has the speed and the time left; `-v` prints one for each step.
#[test]
fn lines_have_the_time_left() {
    let folder = folder();
    let lines = said(&train(folder.path(), &["-v"]).assert().success());
    let steps: Vec<&str> = lines.lines().filter(|line| line.starts_with("step ")).collect();
    assert_eq!(steps.len(), 40, "{lines}");
    // The first steps do not tell how long others take.
    let has_left = |line: &&str| line.contains("  left ");
    assert!(!has_left(&steps[0]) && steps[2..39].iter().all(has_left) && !has_left(&steps[39]), "{lines}");
    assert!(steps[5].contains("tok/s "), "{lines}");
    let usual = said(&train(folder.path(), &[]).assert().success());
    assert!(usual.lines().filter(|line| line.starts_with("step ")).count() < 40, "{usual}");
}
