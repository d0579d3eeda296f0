//! `firebrick bench` as users run it.

use std::fs;

use assert_cmd::Command;

use crate::command_line::folder;

#[test]
fn a_benchmark_beside_the_plain_loop_reports_ratios() {
    let folder = folder();
    let mut command = Command::cargo_bin("firebrick").unwrap();
    let arguments =
        ["bench", "run.ron", "--raw", "--steps", "2", "--warmup", "1", "--rounds", "2", "--report", "json"];
    let output = command.current_dir(folder.path()).args(arguments).assert().success();
    let report: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    for name in ["raw_step_seconds_median", "raw_peak_bytes", "step_ratio_to_raw", "peak_ratio_to_raw"] {
        assert!(report[name].as_f64() > Some(0.0), "{name} in {report}");
    }
    assert!(!folder.path().join("out").exists(), "a benchmark writes nothing");
}

#[test]
fn what_is_shortened_is_told_once_for_both_runs() {
    let folder = folder();
    let file = folder.path().join("run.ron");
    let run = fs::read_to_string(&file).unwrap().replace("warmup: 1", "warmup: 9");
    fs::write(&file, run).unwrap();
    let told = |beside: &str, expected: usize| {
        let mut command = Command::cargo_bin("firebrick").unwrap();
        let arguments = ["bench", "run.ron", "--steps", "1", "--warmup", "0", "--rounds", "1"];
        let sets = ["--set", "steps=4", "--beside", beside];
        let output = command.current_dir(folder.path()).args(arguments).args(sets).assert().success();
        let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
        assert_eq!(said.matches("`warmup` is shortened").count(), expected, "{beside}: {said}");
    };
    told("batch.micro=2", 1);
    told("steps=3", 2);
    // An error names the option that has it.
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(folder.path()).args([
        "bench",
        "run.ron",
        "--set",
        "steps=20",
        "--beside",
        "batch.mirco=2",
    ]);
    command.assert().failure().stderr(predicates::str::contains("--beside batch.mirco=2: unknown name"));
}

/// The process starts once: the first step of a later round does not measure the start-up time.
#[test]
fn a_benchmark_reports_the_first_step_of_the_process() {
    let folder = folder();
    let mut command = Command::cargo_bin("firebrick").unwrap();
    let arguments =
        ["bench", "run.ron", "--steps", "20", "--warmup", "0", "--rounds", "5", "--report", "json"];
    let output = command.current_dir(folder.path()).args(arguments).assert().success();
    let report: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let [first, wall, median] = ["first_step_seconds", "wall_seconds", "step_seconds_median"]
        .map(|name| report[name].as_f64().unwrap());
    // At least half of the 99 steps after the first take the median. After the first step of the last round come only
    // 19.
    assert!(first > 0.0 && wall - first >= 49.0 * median, "{report}");
}
