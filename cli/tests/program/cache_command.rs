//! `firebrick cache` as users run it.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::str::contains;

fn cache(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.env("FIREBRICK_CACHE", folder).arg("cache").args(arguments);
    command
}

#[test]
fn kernels_are_listed_by_gpu_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    cache(&kernels, &[]).assert().success().stdout(contains("kernels: 0 B"));
    fs::create_dir(&kernels).unwrap();
    for (file, bytes) in
        [("kernels_a100_1.5_full.db", 4000), ("kernels_a100_1.5_full.db-wal", 1000), ("mine", 1)]
    {
        fs::write(kernels.join(file), vec![0; bytes]).unwrap();
    }
    cache(&kernels, &[]).assert().success().stdout(contains("a100 1.5 full")).stdout(contains("kernels: 5"));
    let output = cache(&kernels, &["--report", "json"]).assert().success().get_output().stdout.clone();
    let report: serde_json::Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(report["kernels"], serde_json::json!([{"name": "a100 1.5 full", "bytes": 5000}]));
    cache(&kernels, &["clear"]).assert().success().stdout(contains("removed 5"));
    let left: Vec<_> = fs::read_dir(&kernels).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}

#[test]
fn a_folder_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    cache(&file, &[]).assert().code(1).stderr(contains("file: ")).stderr(contains("FIREBRICK_CACHE"));
    let mut without = Command::cargo_bin("firebrick").unwrap();
    for variable in ["FIREBRICK_CACHE", "XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"] {
        without.env_remove(variable);
    }
    without.arg("cache").assert().code(1).stderr(contains("Set FIREBRICK_CACHE"));
}
