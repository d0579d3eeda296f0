//! `firebrick runs` and `firebrick compare` as users run them.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;

use crate::small_run::{firebrick, folder, started, train, wait_until};

fn checkpoints(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder.join("checkpoints")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

#[test]
fn runs_are_listed_with_how_they_stand() {
    let folder = folder();
    let place = folder.path();
    train(place, &["--output", "runs/one", "--steps", "8"]).assert().success();
    train(place, &["--output", "runs/deep/two", "--steps", "8", "--set", "early_stopping=1"])
        .assert()
        .success();
    // A run whose process was killed.
    let mut child =
        started(place, &["--steps", "1000000", "--output", "runs/three", "--set", "evaluate_every=500000"]);
    let list =
        || firebrick(place).args(["runs", "--report", "json"]).assert().success().get_output().stdout.clone();
    let read = || -> serde_json::Value { serde_json::from_slice(&list()).unwrap() };
    let states = |report: &serde_json::Value| -> Vec<String> {
        let runs = report["runs"].as_array().unwrap();
        runs.iter()
            .map(|run| format!("{} {}", run["folder"].as_str().unwrap(), run["state"].as_str().unwrap()))
            .collect()
    };
    let report = read();
    assert!(states(&report).contains(&"runs/three running".to_owned()), "{report}");
    child.kill().unwrap();
    child.wait().unwrap();
    let report = read();
    assert_eq!(states(&report), ["runs/deep/two finished", "runs/one finished", "runs/three killed"]);
    let one = &report["runs"][1];
    assert_eq!(
        (&one["task"], &one["model"], &one["steps"], &one["total"]),
        (&"CausalLm".into(), &"Gpt".into(), &8.into(), &8.into())
    );
    assert!(one["best_valid_loss"].as_f64().unwrap() > 0.0 && one["best_step"] == 8, "{one}");
    let text = firebrick(place).arg("runs").assert().success();
    text.stdout(contains("runs/one").and(contains("8/8")).and(contains("CausalLm")).and(contains("ago")));
    firebrick(place).args(["runs", "nowhere"]).assert().code(1).stderr(contains("nowhere"));
    fs::create_dir(place.join("empty")).unwrap();
    firebrick(place).args(["runs", "empty"]).assert().success().stdout("no runs in empty\n");
}

#[test]
fn names_of_folders_and_damaged_logs_do_not_mislead() {
    let folder = folder();
    let place = folder.path();
    train(place, &["--output", "runs/a\nb", "--steps", "8"]).assert().success();
    let list = || -> String {
        let listed = firebrick(place).arg("runs").assert().success();
        String::from_utf8(listed.get_output().stdout.clone()).unwrap()
    };
    let text = list();
    assert!(text.lines().count() == 2 && text.contains("runs/a\\nb  finished"), "{text}");
    // What the log no longer says, the report does.
    let out = place.join("runs/a\nb");
    fs::write(out.join("metrics.jsonl"), b"\xff\xfe no log\nnor this\n").unwrap();
    let text = list();
    assert!(text.contains("finished") && text.contains(" 8/8 ") && !text.contains(" -  "), "{text}");
    fs::remove_file(out.join("report.json")).unwrap();
    assert!(list().contains("damaged log"), "{}", list());
    fs::remove_file(out.join("metrics.jsonl")).unwrap();
    assert!(list().contains("no update"), "{}", list());
}

#[test]
fn two_runs_are_compared_by_settings_numbers_and_curves() {
    let folder = folder();
    let place = folder.path();
    train(place, &["--output", "a"]).assert().success();
    train(place, &["--output", "b", "--steps", "20", "--set", "optimizer.weight_decay=0.2"])
        .assert()
        .success();
    let compared = firebrick(place).args(["compare", "a", "b"]).assert().success();
    let text = String::from_utf8(compared.get_output().stdout.clone()).unwrap();
    let differs = text.lines().find(|line| line.contains("weight_decay")).unwrap();
    assert!(differs.contains("0.1 ") && differs.ends_with("0.2"), "{text}");
    assert!(!text.contains("seed") && !text.contains("  output"), "{text}");
    assert!(
        text.contains("\ntrain loss, steps 1 to 40, from ") && text.contains("\nvalid loss, steps 8 to 40"),
        "{text}"
    );
    let curve = |name: &str| {
        text.lines().find(|line| line.starts_with(&format!("  {name} "))).unwrap().chars().count()
    };
    assert!(curve("A") > curve("B") + 20, "a run of half the steps ends in the middle: {text}");
    // At the last step, the shorter run has no loss.
    let last = text.lines().last().unwrap();
    assert!(last.trim_start().starts_with("40 ") && last.ends_with("-"), "{text}");
    let page = firebrick(place).args(["compare", "a", "b", "--page", "page.html"]).assert().success();
    page.stdout(text).stderr(contains("page.html"));
    let page = fs::read_to_string(place.join("page.html")).unwrap();
    for part in
        ["A: a", "B: b", "optimizer.AdamW.weight_decay", "Training loss, smoothed over steps 1 to 40."]
    {
        assert!(page.contains(part), "{part} in {page}");
    }
    firebrick(place)
        .args(["compare", "a", "b", "--page", "no/such"])
        .assert()
        .code(1)
        .stderr(contains("no/such"));
    let same = firebrick(place).args(["compare", "a", "a"]).assert().success();
    same.stdout(contains("The settings are the same."));
    firebrick(place).args(["compare", "a", "."]).assert().code(1).stderr(contains("output folder of a run"));
}

/// Only what is asked for is removed, and never the newest or the best checkpoint, or one of a run in use.
#[test]
fn pruning_shows_first_and_keeps_the_newest_and_the_best() {
    let folder = folder();
    let place = folder.path();
    let keep_all = ["--set", "checkpoints=(every: 4, keep_last: 100, keep_best: 1)"];
    train(place, &[&["--output", "runs/one"], &keep_all[..]].concat()).assert().success();
    let out = place.join("runs/one");
    let before = checkpoints(&out);
    assert!(before.len() >= 8, "{before:?}");
    let list = firebrick(place).args(["runs", "--prune"]).assert().success();
    list.stdout(contains("removed by `--prune --yes`").and(contains(&*before[0])));
    assert_eq!(checkpoints(&out), before, "a list removes nothing");
    firebrick(place).args(["runs", "--yes"]).assert().code(2);
    firebrick(place).args(["runs", "--prune", "--yes"]).assert().success().stdout(contains("removed "));
    // Update 40 is the newest, and has the lowest loss.
    assert_eq!(checkpoints(&out), ["step-00000040"]);
    firebrick(place).args(["runs", "--prune"]).assert().success().stdout(contains("nothing to remove"));
    firebrick(place).args(["checkpoint", "verify", "runs/one"]).assert().success();

    // A run in use is left alone.
    let more = ["--steps", "1000000", "--output", "runs/two", "--set", "evaluate_every=500000"];
    let mut child = started(place, &[&more[..], &keep_all].concat());
    let two = place.join("runs/two");
    wait_until("three checkpoints", || two.join("checkpoints").is_dir() && checkpoints(&two).len() >= 3);
    let list = firebrick(place).args(["runs", "--prune"]).assert().success();
    list.stdout(contains("nothing to remove")).stderr(contains("left alone: runs/two is in use"));
    child.kill().unwrap();
    child.wait().unwrap();
    firebrick(place).args(["runs", "--prune"]).assert().success().stdout(contains("runs/two"));
}
