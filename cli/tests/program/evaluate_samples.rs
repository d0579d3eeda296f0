//! `evaluate_samples`: evaluation on the first samples of the validation data.

use std::fs;

use predicates::str::contains;
use serde_json::Value;
use tempfile::TempDir;

use crate::small_run::{at_root, folder, train};

/// Returns loss and items of each evaluation in a log.
fn evaluations(folder: &std::path::Path) -> Vec<(String, u64)> {
    let log = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let valid = lines.filter(|line| line["kind"] == "valid");
    valid.map(|line| (line["loss"].to_string(), line["items"].as_u64().unwrap())).collect()
}

#[test]
fn windows_are_the_first_ones_and_always_the_same() {
    let folder = folder();
    let run = |options: &[&str]| {
        train(folder.path(), &[&["--steps", "8"], options].concat()).assert().success();
        evaluations(&folder.path().join("out"))
    };
    let all = run(&[]);
    let three = run(&["--set", "evaluate_samples=3"]);
    assert_eq!(three[0].1, 3 * 8, "three windows of 8 tokens");
    assert!(all[0].1 > three[0].1);
    assert_eq!(run(&["--set", "evaluate_samples=3"]), three);
    // More samples than there are.
    assert_eq!(run(&["--set", "evaluate_samples=1000000"]), all);
    let zero = train(folder.path(), &["--set", "evaluate_samples=0"]).assert().code(1);
    zero.stderr(contains("`evaluate_samples` must be at least 1"));
}

#[test]
fn samples_are_the_first_ones_of_given_and_of_held_out_data() {
    let place = TempDir::new().unwrap();
    let out = place.path().join("out");
    let items = |sets: &[&str]| {
        let mut train = at_root();
        train.args(["train", "examples/sequence_classification.ron", "--steps", "1", "--output"]).arg(&out);
        for set in sets {
            train.args(["--set", set]);
        }
        train.assert().success();
        evaluations(&out)[0].1
    };
    assert_eq!(items(&["evaluate_samples=5"]), 5);
    assert_eq!(items(&["evaluate_samples=5", "data.valid=None"]), 5);
    assert!(items(&[]) > 5);
    // `firebrick eval` takes all.
    let mut eval = at_root();
    eval.args(["eval", out.to_str().unwrap(), "--set", "evaluate_samples=5", "--report", "json"]);
    let report = crate::small_run::report(&mut eval);
    assert!(report["samples"].as_u64().unwrap() > 5, "{report}");
}
