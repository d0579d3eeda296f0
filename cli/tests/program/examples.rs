//! Runs every example for a few steps, as a user would.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn example(name: &str, sets: &[&str]) -> assert_cmd::assert::Assert {
    let output = tempfile::tempdir().unwrap();
    let mut command = crate::small_run::at_root();
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

/// The configuration for eight GPUs, on the CPU.
#[test]
fn eight_ranks() {
    let sets = ["sample.tokens=5", "data.path=\"examples\"", "data.tokenizer.vocabulary=300"];
    let run = example("eight_ranks", &sets).success().stdout(contains("saved in").and(contains("awaited")));
    run.stderr(contains("8 ranks x 2 micro-batches of 1 = 16 samples in an update"));
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

/// Runs `firebrick data` of an example on data like its own.
fn data_example(name: &str, files: &[(&str, &str)], sets: &[&str]) -> assert_cmd::assert::Assert {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut command = Command::cargo_bin("firebrick").unwrap();
    let run = std::path::absolute(format!("../examples/{name}.ron")).unwrap();
    command.current_dir(folder.path()).arg("data").arg(run);
    sets.iter().for_each(|set| {
        command.args(["--set", set]);
    });
    command.assert()
}

#[test]
fn wnut17() {
    let sentence = "@paulwalk\tO\nEmpire\tB-location\nState\tI-location\n\n";
    let files = [("wnut17/wnut17train.conll", &*sentence.repeat(5)), ("wnut17/emerging.dev.conll", sentence)];
    data_example("wnut17", &files, &["data.tokenizer.vocabulary=300"])
        .success()
        .stdout(contains("B-location").and(contains("samples      5")));
}

#[test]
fn multi30k() {
    let (english, french) = ("Two young guys.\n".repeat(6), "Deux jeunes hommes.\n".repeat(6));
    let files = [
        ("multi30k/train.en", &*english),
        ("multi30k/train.fr", &french),
        ("multi30k/val.en", &english),
        ("multi30k/val.fr", &french),
    ];
    data_example("multi30k", &files, &["data.tokenizer.vocabulary=300"])
        .success()
        .stdout(contains("decoder").and(contains("samples      6")));
}
