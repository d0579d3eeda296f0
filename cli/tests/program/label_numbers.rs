//! Numbers as labels are names throughout a data set, or ids throughout.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::firebrick;

const REST: &str = r#"
    model: Bert(layers: 1, heads: 1, width: 8),
    optimizer: AdamW(), schedule: Constant(lr: 1e-2), batch: (micro: 20), steps: 1, device: "cpu""#;

const TOKENIZER: &str = r#"tokenizer: Bpe(vocabulary: 300), special: (pad: "<pad>", bos: "<s>", eos: "</s>"),
    max_length: 60, cache: false"#;

/// Writes 20 records with the labels from `first` on, four of each of five, and five with the label `first`.
fn records(folder: &Path, name: &str, first: usize) {
    let line =
        |at: usize| format!("{{\"text\": \"a text of number {at}\", \"label\": {}}}\n", first + at % 5);
    fs::write(folder.join(format!("{name}.jsonl")), (0..20).map(line).collect::<String>()).unwrap();
    let line = |at: usize| format!("{{\"text\": \"another {at}\", \"label\": {first}}}\n");
    fs::write(folder.join(format!("{name}.valid.jsonl")), (0..5).map(line).collect::<String>()).unwrap();
}

fn folder(task: &str, data: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    records(folder.path(), "from_0", 0);
    records(folder.path(), "from_1", 1);
    let run = format!("(task: {task}, data: ({data}, {TOKENIZER}), output: \"out\", {REST})");
    fs::write(folder.path().join("run.ron"), run).unwrap();
    folder
}

/// Returns the labels that the preview shows, and how often.
fn shown(folder: &Path, data: &str) -> (Vec<(String, usize)>, String) {
    let path = format!("data.path={data}.jsonl");
    let mut command = firebrick(folder);
    command.args(["data", "run.ron", "--set", &path, "--batches", "1", "--rows", "20", "--color", "never"]);
    let output = command.assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut labels: Vec<String> =
        text.lines().filter_map(|line| Some(line.split_once("→ ")?.1.trim().to_owned())).collect();
    labels.sort();
    let counted = labels.chunk_by(|a, b| a == b).map(|same| (same[0].clone(), same.len())).collect();
    (counted, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn names_that_are_numbers_have_one_meaning_for_all_records() {
    let task = "SequenceClassification(names: [\"1\", \"2\", \"3\", \"4\", \"5\"])";
    let folder = folder(task, "path: \"from_0.jsonl\", valid_fraction: 0.0");
    let expected: Vec<_> = (1..6).map(|name| (name.to_string(), 4)).collect();
    let (labels, said) = shown(folder.path(), "from_0");
    assert_eq!(labels, expected);
    assert_eq!(said.matches("the numbers in `label` are ids of labels").count(), 1, "{said}");
    assert!(said.contains("0 is the label \"1\""), "{said}");
    let (labels, said) = shown(folder.path(), "from_1");
    assert_eq!(labels, expected);
    assert_eq!(said.matches("the numbers in `label` are names of labels").count(), 1, "{said}");

    // Neither reading fits all records.
    let both = ["from_0", "from_1"]
        .map(|name| fs::read_to_string(folder.path().join(format!("{name}.jsonl"))).unwrap());
    fs::write(folder.path().join("both.jsonl"), both.concat()).unwrap();
    let mut command = firebrick(folder.path());
    let assert = command.args(["data", "run.ron", "--set", "data.path=both.jsonl"]).assert().code(1);
    assert.stderr(contains(
        "both.jsonl:1, field `label`: expected one of the labels 1, 2, 3, 4, 5, found the number 0",
    ));
}

#[test]
fn a_validation_label_that_training_lacks_is_an_error() {
    let folder = folder("SequenceClassification()", "path: \"from_1.jsonl\", valid: \"from_1.valid.jsonl\"");
    let train = |sets: &[&str]| {
        let mut command = firebrick(folder.path());
        command.args(["train", "run.ron", "--plain"]);
        for set in sets {
            command.args(["--set", set]);
        }
        command.assert()
    };
    let lacking = "expected one of the labels 1, 2, 3, 4, 5, found the number 0";
    train(&["data.valid=from_0.valid.jsonl"])
        .code(1)
        .stderr(contains("from_0.valid.jsonl:1").and(contains(lacking)));
    train(&[]).success();
    // Evaluation of the trained run knows the same labels.
    let mut eval = firebrick(folder.path());
    eval.args(["eval", "out", "--data", "from_0.valid.jsonl"]).assert().code(1).stderr(contains(lacking));
    let mut eval = firebrick(folder.path());
    eval.args(["eval", "out", "--data", "from_1.valid.jsonl"]).assert().success();

    // A run that goes on from its classifier reads ids as ids, and says so.
    let again = [
        "model=Pretrained(\"out/pretrained\")",
        "data.tokenizer=File(\"out/pretrained\")",
        "data.path=from_0.jsonl",
        "data.valid=from_0.valid.jsonl",
        "output=again",
    ];
    train(&again).success().stderr(contains("the numbers in `label` are ids of labels, not their names"));
}

#[test]
fn a_field_of_ids_is_no_label() {
    let folder = folder("SequenceClassification()", "path: \"ids.csv\"");
    let rows = (0..300).map(|row| format!("t {row},l{row}\n"));
    fs::write(folder.path().join("ids.csv"), "text,label\n".to_owned() + &rows.collect::<String>()).unwrap();
    let mut command = firebrick(folder.path());
    let assert = command.args(["train", "run.ron", "--plain"]).assert().code(1);
    assert.stderr(contains("300 of the 300 labels in `label` occur only once"));
}
