//! Every example runs, as a user would run it, for a few steps.

use assert_cmd::Command;
use predicates::str::contains;

#[path = "../examples/compose.rs"]
#[allow(dead_code)]
mod compose;

fn example(name: &str, sets: &[&str]) -> assert_cmd::assert::Assert {
    let output = tempfile::tempdir().unwrap();
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("BURN_DEVICE");
    command.arg("train").arg(format!("examples/{name}.ron"));
    let folder = format!("output={:?}", output.path().join("run"));
    for set in
        sets.iter().copied().chain([folder.as_str(), "steps=2", "evaluate_every=2", "schedule.warmup=1"])
    {
        command.arg("--set").arg(set);
    }
    command.assert()
}

#[test]
fn causal_lm() {
    let sets = ["sample.tokens=5", "data.path=\"examples\"", "data.tokenizer.vocabulary=300"];
    example("causal_lm", &sets).success().stdout(contains("valid loss")).stdout(contains("saved in"));
}

#[test]
fn tinyshakespeare() {
    let text = tempfile::tempdir().unwrap();
    let path = text.path().join("input.txt");
    std::fs::write(&path, "First Citizen:\nBefore we proceed any further, hear me speak.\n\n".repeat(40))
        .unwrap();
    let sets = [format!("data.path={path:?}"), "sample.tokens=5".into()];
    example("tinyshakespeare", &sets.each_ref().map(String::as_str)).success().stdout(contains("valid loss"));
}

#[test]
fn compose_in_rust() {
    compose::main().unwrap();
}
