//! An update sees the same samples, however the global batch is cut and on any number of ranks.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use tempfile::TempDir;

/// Lines of 3 to 25 characters, in a run without dropout: nine or more make a batch of 256 tokens, which four ranks
/// cannot share evenly.
const RUN: &str = r#"(
    task: CausalLm(rows: Samples),
    data: (path: "lines.jsonl", tokenizer: Characters, max_length: 48, valid_fraction: 0.0),
    model: Gpt(layers: 2, heads: 2, width: 16),
    optimizer: AdamW(epsilon: 1e-3),
    schedule: Constant(lr: 1e-3),
    batch: (micro: 6),
    steps: 8,
    strategies: [Clip(norm: 100.0)],
    output: "out",
)
"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.ron"), RUN).unwrap();
    let text = "to be or not to be, that is the question";
    let line = |at: usize| serde_json::json!({ "text": text[at * 5 % 11..][..3 + at * 17 % 23] }).to_string();
    let lines: Vec<_> = (0..100).map(line).collect();
    fs::write(folder.path().join("lines.jsonl"), lines.join("\n")).unwrap();
    folder
}

/// Returns loss, gradient norm and tokens of each step of a run with these options.
fn steps(folder: &Path, options: &[&str]) -> Vec<(f64, f64, u64)> {
    let mut program = Command::cargo_bin("firebrick").unwrap();
    program.current_dir(folder).args(["train", "run.ron", "--device", "cpu"]).args(options);
    program.assert().success();
    let log = fs::read_to_string(folder.join("out/metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let steps = lines.filter(|line| line["kind"] == "train");
    let number = |line: &serde_json::Value, name: &str| line[name].as_f64().unwrap();
    steps
        .map(|line| (number(&line, "loss"), number(&line, "gradient_norm"), line["tokens"].as_u64().unwrap()))
        .collect()
}

fn assert_alike(found: &[(f64, f64, u64)], expected: &[(f64, f64, u64)], what: &str) {
    assert_eq!((found.len(), expected.len()), (8, 8), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let apart = |found: f64, expected: f64| (found - expected).abs() / expected;
        let alike = apart(found.0, expected.0) < 1e-4 && apart(found.1, expected.1) < 1e-3;
        assert!(alike && found.2 == expected.2, "{what}: {found:?} instead of {expected:?}");
    }
}

#[test]
fn batches_of_tokens_are_summed_on_ranks_as_on_one() {
    let folder = folder();
    let alone = steps(folder.path(), &["--set", "batch=(micro_tokens: 256)", "--ranks", "1"]);
    for strategies in ["[]", "[Clip(norm: 100.0)]", "[Zero(stage: 2), Clip(norm: 100.0)]"] {
        let set = format!("strategies={strategies}");
        let cut = ["--set", "batch=(micro_tokens: 64)", "--ranks", "4", "--set", &set];
        assert_alike(&steps(folder.path(), &cut), &alone, strategies);
    }
}

#[test]
fn batches_grouped_by_length_are_those_of_any_number_of_ranks() {
    let folder = folder();
    let grouped = |batch: &str, options: &[&str]| {
        let all = [&["--set", "data.group_by_length=true", "--set", batch], options].concat();
        steps(folder.path(), &all)
    };
    let alone = grouped("batch.micro=6", &[]);
    assert_alike(&grouped("batch.micro=2", &["--ranks", "3"]), &alone, "three ranks");
    let accumulated = grouped("batch=(micro: 1, accumulate: 2)", &["--ranks", "3"]);
    assert_alike(&accumulated, &alone, "three ranks with two micro-batches");
    // A resume on other ranks continues with the batches of the earlier run.
    grouped("batch.micro=6", &["--set", "steps=4", "--set", "checkpoints=(every: 4)"]);
    let resumed = grouped("batch.micro=2", &["--ranks", "3", "--resume", "latest"]);
    assert_alike(&resumed, &alone, "resumed on three ranks");
    let tokens = grouped("batch=(micro_tokens: 240)", &[]);
    assert_alike(&grouped("batch=(micro_tokens: 80)", &["--ranks", "3"]), &tokens, "by tokens");
}
