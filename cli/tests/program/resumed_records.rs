//! The records of a run stay correct, however often and from wherever it resumes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;

use crate::events::shown;
use crate::small_run::{firebrick, folder, report, train};

/// Counts the lines of each step in the log, by their kind.
pub fn logged(run: &Path, kind: &str) -> BTreeMap<u64, usize> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let mut steps = BTreeMap::new();
    for line in text.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        if line["kind"] == kind {
            *steps.entry(line["step"].as_u64().unwrap()).or_default() += 1;
        }
    }
    steps
}

/// Checks that log and TensorBoard of a run have one line for each of its updates and evaluations.
pub fn is_recorded_once(run: &Path, updates: u64, evaluations: &[u64]) {
    let once = |steps: &mut dyn Iterator<Item = u64>| steps.map(|step| (step, 1)).collect::<BTreeMap<_, _>>();
    let (steps, evaluations) = (once(&mut (1..=updates)), once(&mut evaluations.iter().copied()));
    assert_eq!(logged(run, "train"), steps, "the steps in the log");
    assert_eq!(logged(run, "valid"), evaluations, "the evaluations in the log");
    let shown = shown(run);
    for tag in ["train/loss", "train/learning_rate", "train/tokens_per_second"] {
        assert_eq!(shown[tag], steps, "{tag} in TensorBoard");
    }
    assert_eq!(shown["valid/loss"], evaluations, "valid/loss in TensorBoard");
}

#[test]
fn each_step_has_one_line_whichever_branch_a_run_goes_on_with() {
    let folder = folder();
    let folder = folder.path();
    let out = folder.join("out");
    let kept = ["--set", "checkpoints=(every: 10, keep_last: 9)"];
    let go_on = |from: &str, steps: u64, evaluations: &[u64]| {
        let steps_set = format!("steps={steps}");
        report(train(folder, &["--resume", from, "--set", &steps_set]).args(kept));
        is_recorded_once(&out, steps, evaluations);
    };
    report(train(folder, &[]).args(kept));
    let original = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    // Back, and forward to a checkpoint of the first branch that the second has not reached.
    go_on("step-20", 26, &[8, 16, 24, 26]);
    go_on("step-40", 42, &[8, 16, 24, 32, 40, 42]);
    // The lines are those of the steps that it continues from.
    let log = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let train = |log: &str| {
        log.lines().filter(|line| line.contains("train")).take(40).map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(train(&log), train(&original));
    go_on("step-10", 12, &[8, 12]);
    go_on("latest", 13, &[8, 12, 13]);
    // A log changed by hand, or of an older version: its lines are kept once.
    let log = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    fs::write(out.join("metrics.jsonl"), format!("{log}{log}")).unwrap();
    fs::read_dir(&out).unwrap().map(|entry| entry.unwrap()).for_each(|entry| {
        if entry.file_name().to_string_lossy().starts_with("metrics-") {
            fs::remove_file(entry.path()).unwrap();
        }
    });
    go_on("latest", 14, &[8, 12, 13, 14]);
}

#[test]
fn the_best_model_is_one_of_the_branch_that_goes_on() {
    let folder = folder();
    let folder = folder.path();
    let kept = ["--set", "checkpoints=(every: 10, keep_last: 9)"];
    let first = report(train(folder, &[]).args(kept));
    assert!(first["best_step"].as_u64().unwrap() > 16, "{first}");
    // At this rate nothing is learned: the best before the checkpoint stays the best.
    let options = [
        "--resume",
        "step-20",
        "--allow-changes",
        "--set",
        "steps=24",
        "--set",
        "schedule=Constant(lr: 3.0)",
    ];
    let second = report(train(folder, &options).args(kept));
    assert_eq!(second["best_step"], 16, "{second}");
    let evaluated = report(firebrick(folder).args(["eval", "out", "--report", "json"]));
    let (expected, found) =
        (second["best_valid_loss"].as_f64().unwrap(), evaluated["loss"].as_f64().unwrap());
    assert!((found - expected).abs() < 1e-4, "{found} and {expected}");
    // Also in another folder, and without an evaluation before the checkpoint.
    let options = [
        "--resume",
        "out/checkpoints/step-00000020",
        "--set",
        "output=\"next\"",
        "--set",
        "steps=21",
        "--set",
        "evaluate_every=50",
    ];
    let third = report(train(folder, &options).args(["--set", "data.valid_fraction=0.2"]));
    assert_eq!(third["best_step"].as_u64().filter(|step| *step != 16), Some(21), "{third}");
}

#[test]
fn a_run_that_is_over_stays_what_it_is() {
    let folder = folder();
    let folder = folder.path();
    let first = report(&mut train(folder, &[]));
    let files = ["report.json", "run.ron", "metrics.jsonl", "tokenizer.json"];
    let read = || files.map(|name| fs::read_to_string(folder.join("out").join(name)).unwrap());
    let there = read();
    for options in [&["--resume"][..], &["--resume", "--set", "steps=30", "--set", "sample=(prompt: \"to\")"]]
    {
        let again = report(&mut train(folder, options));
        assert!(read() == there, "{options:?}");
        for number in ["tokens_per_second", "gradient_norm", "peak_bytes", "best_valid_loss", "wall_seconds"]
        {
            assert_eq!(again[number], first[number], "{options:?}: {number}");
        }
    }
    // If it continues, its report covers all of its steps, and its run file is the last one.
    let longer = report(&mut train(folder, &["--resume", "--set", "steps=41"]));
    assert_eq!(longer["steps"], 41);
    assert!(read()[1].contains("steps: 41"), "{}", read()[1]);
    let log = fs::read_to_string(folder.join("out/metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let (tokens, seconds) = lines.filter(|line| line["kind"] == "train").fold((0.0, 0.0), |sums, line| {
        (sums.0 + line["tokens"].as_f64().unwrap(), sums.1 + line["seconds"].as_f64().unwrap())
    });
    let found = longer["tokens_per_second"].as_f64().unwrap();
    assert!((found / (tokens / seconds) - 1.0).abs() < 1e-6, "{found}");
}

#[test]
fn lines_count_on_from_the_checkpoint() {
    let folder = folder();
    let folder = folder.path();
    report(&mut train(folder, &[]));
    let went_on = train(folder, &["--plain", "--resume", "step-20", "--set", "steps=24"]).assert().success();
    let went_on = went_on.stderr(contains("step     21/24").and(contains("valid    24/24")));
    went_on.stderr(contains("valid     4/").not().and(contains("valid     8/").not()));
    // The round of the steps 17 to 24 has one value for each.
    let values = fs::read_to_string(folder.join("out/metrics/train/epoch-3/Loss.log")).unwrap();
    assert_eq!(values.lines().filter(|line| !line.ends_with("final")).count(), 8, "{values}");
    // The rounds of the steps that the run left are gone.
    for split in ["train", "valid"] {
        let rounds = fs::read_dir(folder.join("out/metrics").join(split)).unwrap();
        let rounds: BTreeSet<_> = rounds.map(|round| round.unwrap().file_name()).collect();
        assert_eq!(rounds, ["epoch-1", "epoch-2", "epoch-3"].map(Into::into).into(), "{split}");
    }
}
