//! A run whose process is killed: a watcher notices it, and its weights are usable.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use predicates::str::contains;

use crate::events::shown;
use crate::small_run::{firebrick, folder, report, started, train, wait_until};

/// Waits until a run meets a condition.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the validation losses in the log, by step.
fn validated(folder: &Path) -> Vec<(u64, f64)> {
    let text = fs::read_to_string(folder.join("out/metrics.jsonl")).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let valid = lines.filter(|line| line["kind"] == "valid");
    valid.map(|line| (line["step"].as_u64().unwrap(), line["loss"].as_f64().unwrap())).collect()
}

/// Compares the result of `eval` with the best evaluation in the log, or with the one before the last, if the run was
/// killed between logging an evaluation and saving it.
fn has_the_best_weights(folder: &Path) {
    let losses: Vec<_> = validated(folder).into_iter().map(|(_, loss)| loss).collect();
    let best = |losses: &[f64]| losses.iter().copied().fold(f64::INFINITY, f64::min);
    let bests = [best(&losses), best(&losses[..losses.len() - 1])];
    let found = report(firebrick(folder).args(["eval", "out", "--report", "json"]))["loss"].as_f64().unwrap();
    assert!(bests.iter().any(|best| (found - best).abs() < 1e-4), "{found} and {bests:?}");
}

/// Saves often, and trains for minutes.
const LONG: [&str; 4] = ["--set", "steps=1000000", "--set", "checkpoints=(every: 10, keep_last: 2)"];

#[test]
fn watching_ends_when_the_run_is_killed_and_when_it_is_over() {
    let folder = folder();
    let folder = folder.path();
    let child = started(folder, &LONG);
    let watching = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder)
        .args(["watch", "out", "--plain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(600));
    kill(child);
    let output = watching.wait_with_output().unwrap();
    let (lines, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        lines.contains("step ") && error.contains("the process of this run is gone after update"),
        "{lines}{error}"
    );
    assert!(error.contains("--resume") && error.contains("firebrick export"), "{error}");
    // The killed run has released the folder, and a watcher does not lock it.
    report(&mut train(folder, &["--resume", "auto", "--set", "steps=4", "--set", "checkpoints=()"]));
    firebrick(folder).args(["watch", "out", "--plain"]).assert().success().stdout(contains("finished after"));
}

#[test]
fn watching_ends_if_the_run_was_killed_before_its_first_step() {
    let folder = folder();
    let folder = folder.path();
    report(&mut train(folder, &["--set", "steps=4", "--set", "checkpoints=()"]));
    fs::write(folder.join("out/metrics.jsonl"), "").unwrap();
    fs::remove_file(folder.join("out/report.json")).unwrap();
    let watched =
        firebrick(folder).args(["watch", "out", "--plain"]).timeout(Duration::from_secs(20)).assert();
    watched.code(1).stderr(contains("the process of this run is gone after update 0"));
}

#[test]
fn tensorboard_has_all_steps_of_each_checkpoint() {
    let folder = folder();
    let folder = folder.path();
    // Only a save, a long time or many steps write its events out.
    let often = [
        "--set",
        "steps=1000000",
        "--set",
        "evaluate_every=1000000",
        "--set",
        "checkpoints=(every: 1, keep_last: 1)",
    ];
    let child = started(folder, &often);
    let newest = || fs::read_to_string(folder.join("out/checkpoints/latest")).unwrap_or_default();
    wait_until("a checkpoint", || newest().starts_with("step-"));
    kill(child);
    let step: u64 = newest().trim().strip_prefix("step-").unwrap().parse().unwrap();
    let shown = shown(&folder.join("out"));
    let steps: Vec<_> = shown["train/loss"].keys().copied().take_while(|at| *at <= step).collect();
    assert_eq!(steps, (1..=step).collect::<Vec<_>>());
}

#[test]
fn the_best_weights_of_a_killed_run_can_be_used() {
    let folder = folder();
    let folder = folder.path();
    let child = started(folder, &LONG);
    wait_until("three evaluations", || validated(folder).len() > 2);
    // Works also during training.
    firebrick(folder)
        .args(["generate", "out", "--prompt", "to be", "--max-new-tokens", "4"])
        .assert()
        .success();
    kill(child);
    let wrote =
        firebrick(folder).args(["generate", "out", "--prompt", "to be", "--max-new-tokens", "4"]).assert();
    wrote.success().stdout(contains("to be"));
    has_the_best_weights(folder);
    // The weights of a checkpoint, which are averaged in this run.
    let steps = fs::read_dir(folder.join("out/checkpoints"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_prefix("step-")?.parse::<u64>().ok());
    let step = steps.max().unwrap().to_string();
    let exported =
        firebrick(folder).args(["export", "out", "--step", &step, "-o", "exported"]).assert().success();
    exported.stdout(contains(format!("the averaged weights of step {step} are in exported")));
    let mut names: Vec<_> =
        fs::read_dir(folder.join("exported")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected =
        [".made_of", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(names, expected);
    let other = report(firebrick(folder).args(["eval", "out", "--weights", "exported", "--report", "json"]));
    assert!(other["loss"].as_f64().unwrap().is_finite());
    let missing = firebrick(folder).args(["export", "out", "--step", "3"]).assert().code(1);
    missing.stderr(contains("no complete checkpoint of step 3"));
}

#[test]
fn a_run_that_went_on_and_was_killed_has_its_newer_weights() {
    let folder = folder();
    let folder = folder.path();
    report(&mut train(folder, &["--set", "steps=8"]));
    has_the_best_weights(folder);
    let options =
        [&LONG[..], &["--resume", "--set", "schedule=Constant(lr: 1e-2)", "--allow-changes"]].concat();
    let child = started(folder, &options);
    wait_until("a better evaluation", || validated(folder).iter().any(|(step, _)| *step >= 24));
    kill(child);
    has_the_best_weights(folder);
    firebrick(folder)
        .args(["export", "out"])
        .assert()
        .success()
        .stdout(contains("the best weights are in out/pretrained"));
    has_the_best_weights(folder);
}

#[test]
fn a_run_without_weights_says_what_to_do() {
    let folder = folder();
    let folder = folder.path();
    let endless = [
        "--set",
        "evaluate_every=None",
        "--set",
        "epochs=None",
        "--set",
        "steps=1000000",
        "--set",
        "checkpoints=()",
    ];
    kill(started(folder, &endless));
    for command in [&["export", "out"][..], &["generate", "out", "--prompt", "to"]] {
        let said = firebrick(folder).args(command).assert().code(1);
        said.stderr(contains("this run has saved no weights yet")).stderr(contains("--resume auto"));
    }
}
