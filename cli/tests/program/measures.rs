//! `firebrick eval --perplexity`, `--choices` and `--texts`, beside transformers and lm-evaluation-harness.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use tempfile::TempDir;

use crate::small_run::{firebrick, folder_of, train};

/// Its tokenizer has no special tokens.
const CHARACTERS: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8),
    model: Gpt(layers: 1, heads: 2, width: 8),
    optimizer: AdamW(),
    schedule: Constant(lr: 1e-3),
    batch: (micro: 4),
    steps: 1,
    output: "out",
)"#;

const GOLDEN: &str = "tests/golden/measures";

/// A run file for the golden model; only its task and its data matter.
fn run(task: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = format!(
        r#"(
            task: {task},
            data: (path: "text.txt", tokenizer: File("model"), block: 16, max_length: 16),
            model: Pretrained("model"),
            optimizer: AdamW(),
            schedule: Constant(lr: 1e-3),
            batch: (micro: 3),
            steps: 1,
            output: "out",
        )"#
    );
    let other = if task.contains("Samples") { ", block: 16" } else { ", max_length: 16" };
    let file = file.replace(other, "");
    fs::write(folder.path().join("run.ron"), file).unwrap();
    let golden = Path::new(GOLDEN);
    for name in ["text.txt", "choices.jsonl"] {
        fs::copy(golden.join(name), folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join("model")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(golden.join("model").join(name), folder.path().join("model").join(name)).unwrap();
    }
    folder
}

fn eval(folder: &TempDir, options: &[&str]) -> Command {
    let mut command = firebrick(folder.path());
    command.args(["eval", "run.ron", "--weights", "model", "--device", "cpu", "--report", "json"]);
    command.args(options);
    command
}

fn measured(folder: &TempDir, options: &[&str]) -> Value {
    let output = eval(folder, options).assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

fn expected() -> Value {
    serde_json::from_str(&fs::read_to_string(Path::new(GOLDEN).join("expected.json")).unwrap()).unwrap()
}

#[test]
fn perplexity_by_windows_is_that_of_transformers() {
    let folder = run("CausalLm()");
    for windows in expected()["windows"].as_array().unwrap() {
        let [window, stride] = ["window", "stride"].map(|name| windows[name].to_string());
        let options = ["--perplexity", "--window", &window, "--stride", &stride, "--data", "text.txt"];
        let found = measured(&folder, &options);
        for name in ["loss", "perplexity"] {
            let [found, expected] = [&found["scores"][name], &windows[name]].map(|one| one.as_f64().unwrap());
            assert!((found / expected - 1.0).abs() < 1e-4, "{windows}: {name} {found}");
        }
    }
    // Half of what the model reads is the default, and records are texts of their own.
    let line = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    fs::write(folder.path().join("two.jsonl"), line("the dog") + &line("the dog")).unwrap();
    fs::write(folder.path().join("one.jsonl"), line("the dog")).unwrap();
    let [one, two] =
        ["one.jsonl", "two.jsonl"].map(|data| measured(&folder, &["--perplexity", "--data", data]));
    assert_eq!((&one["samples"], &two["samples"]), (&Value::from(1), &Value::from(2)));
    assert_eq!(2 * one["tokens"].as_u64().unwrap(), two["tokens"].as_u64().unwrap());
    let loss = |found: &Value| found["scores"]["loss"].as_f64().unwrap();
    assert!((loss(&one) - loss(&two)).abs() < 1e-5, "{one} {two}");
}

/// Returns the first line on standard error that says how many of these an evaluation has, which would take minutes.
fn progress(folder: &TempDir, what: &str, options: &[&str]) -> String {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder.path())
        .args(["eval", "run.ron", "--weights", "model", "--device", "cpu"])
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let (said, mut before) = (lines.take(1000), Vec::new());
    let end = format!(" {what} so far");
    let found = said.inspect(|line| before.push(line.clone())).find(|line| line.ends_with(&end));
    child.kill().unwrap();
    child.wait().unwrap();
    found.unwrap_or_else(|| panic!("{before:?}"))
}

/// Where there is no terminal, each is a line of its own.
#[test]
fn an_evaluation_of_more_than_a_second_says_how_far_it_is() {
    let folder = run("CausalLm()");
    let text = "the dog plays with two men in the rain\n".repeat(10_000);
    fs::write(folder.path().join("long.txt"), &text).unwrap();
    let said = progress(&folder, "windows", &["--perplexity", "--stride", "1", "--data", "long.txt"]);
    let numbers: Vec<usize> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [done, all] = numbers[..] else { panic!("{said}") };
    assert_eq!(said, format!("{done} of {all} windows so far"));
    assert!(0 < done && done < all && all > 100_000, "{said}");

    let choices = fs::read_to_string(folder.path().join("choices.jsonl")).unwrap();
    fs::write(folder.path().join("long.jsonl"), choices.repeat(20_000)).unwrap();
    progress(&folder, "questions", &["--choices", "--data", "long.jsonl"]);
    progress(&folder, "samples", &["--data", "long.txt"]);
}

#[test]
fn choices_are_those_of_the_harness() {
    let folder = run("CausalLm()");
    let found = measured(&folder, &["--choices", "--data", "choices.jsonl"]);
    assert_eq!(found["scores"], expected()["choices"]);
    assert_eq!(found["samples"], 5);
    // A begin token changes what the model reads.
    measured(&folder, &["--choices", "--begin-token", "--data", "choices.jsonl"]);
}

#[test]
fn texts_are_scored_against_all_that_are_expected() {
    let folder = run("CausalLm(rows: Samples, prompt: \"question\", text: \"answer\")");
    let record = |answer: &str| format!("{{\"question\": \"Two men\", \"answer\": \"{answer}\"}}\n");
    fs::write(folder.path().join("one.jsonl"), record("play")).unwrap();
    let mut predict = firebrick(folder.path());
    let options = ["predict", "run.ron", "--weights", "model", "--device", "cpu", "-d", "one.jsonl"];
    let output = predict.args(options).args(["--max-new-tokens", "5"]).assert().success();
    let answer: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let answer = &serde_json::to_string(&answer["predicted"]).unwrap();
    let answer = &answer[1..answer.len() - 1];
    fs::write(folder.path().join("two.jsonl"), record(answer) + &record("another")).unwrap();
    let options = ["--texts", "--data", "two.jsonl", "--max-new-tokens", "5"];
    let found = measured(&folder, &options);
    assert_eq!(found["scores"]["exact_match"], 50.0, "{found}");
    let names: Vec<_> = found["scores"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["bleu", "chrf", "exact_match", "f1", "rouge1", "rouge2", "rougeL"]);
}

#[test]
fn malformed_records_are_skipped_and_told() {
    let folder = run("CausalLm()");
    for (measure, good) in [
        ("--perplexity", r#"{"text": "the dog"}"#),
        ("--choices", r#"{"ctx": "Two men play", "endings": ["home", "rain"], "label": 0}"#),
    ] {
        let records = format!("{good}\n{{\"other\": \"a\"}}\n{{\n");
        fs::write(folder.path().join("mixed.jsonl"), records).unwrap();
        let options = [measure, "--data", "mixed.jsonl"];
        eval(&folder, &options).assert().code(1).stderr(contains("mixed.jsonl:2"));
        let skipping = eval(&folder, &options).args(["--set", "data.malformed=Skip"]).assert().success();
        let skipping = skipping.stderr(contains("skipped 2 malformed records, among them"));
        let found: Value = serde_json::from_slice(&skipping.get_output().stdout).unwrap();
        assert_eq!(found["samples"], 1, "{measure}: {found}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = run("CausalLm()");
    fs::write(folder.path().join("bad.jsonl"), "{\"ctx\": \"a\", \"label\": 0}\n").unwrap();
    fs::write(folder.path().join("plain.jsonl"), "{\"text\": \"a\"}\n").unwrap();
    for (options, said) in [
        (
            &["--perplexity", "--window", "33", "--data", "text.txt"][..],
            "at most 32, the tokens that the model",
        ),
        (
            &["--perplexity", "--stride", "32", "--data", "text.txt"],
            "`--stride` must be at least 1 and below",
        ),
        (&["--perplexity"], "name the records to answer with --data"),
        (&["--choices", "--data", "bad.jsonl"], "bad.jsonl:1: expected a list `endings`"),
        (&["--texts", "--data", "plain.jsonl"], "1 of 1 record without an expected text"),
    ] {
        eval(&folder, options).assert().code(1).stderr(contains(said));
    }
    eval(&folder, &["--perplexity", "--choices"]).assert().code(2).stderr(contains("cannot be used with"));
    eval(&folder, &["--stride", "3"]).assert().code(2).stderr(contains("--perplexity"));
    let tokens = run("CausalLm()");
    let file = fs::read_to_string(tokens.path().join("run.ron")).unwrap();
    let file = file.replace("CausalLm()", "TokenClassification()").replace(", block: 16", "");
    fs::write(tokens.path().join("run.ron"), file).unwrap();
    let refused = eval(&tokens, &["--choices", "--data", "choices.jsonl"]).assert().code(1);
    refused.stderr(contains("the task of this run is TokenClassification"));
}

#[test]
fn a_begin_token_and_a_label_that_are_missing_are_named() {
    let folder = folder_of(CHARACTERS, 20);
    train(folder.path(), &[]).assert().success();
    let question = |label: &str| {
        let line = format!("{{\"ctx\": \"to be\", \"endings\": [\"or\", \"not\"], \"label\": {label}}}\n");
        fs::write(folder.path().join("asked.jsonl"), line).unwrap();
    };
    let choices = |more: &[&str]| {
        let mut eval = firebrick(folder.path());
        eval.args(["eval", "out", "--choices", "--data", "asked.jsonl"]).args(more).assert()
    };
    question("1");
    choices(&[]).success();
    choices(&["--begin-token"])
        .code(1)
        .stderr(contains("the tokenizer has neither a begin nor an end token"));
    question("7");
    let said = "asked.jsonl:1, field `label`: expected the index of an ending from 0 to 1";
    choices(&[]).code(1).stderr(contains(said).and(contains("found the number 7")));
}
