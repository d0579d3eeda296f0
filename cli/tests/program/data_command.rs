//! `firebrick data` and `firebrick tokenize`, and training on the data that they show and write.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

const ENTITIES: &str = "\
Maria\tB-person\nof\tO\nNew\tB-location\nYork\tI-location\n\n\
the\tO\nriver\tO\nThames\tB-location\n\n\
Maria\tB-person\nsings\tO\n\n";

/// Creates a folder with one small data set for each task.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("entities.conll", ENTITIES);
    write("train.en", "a dog runs\na man sleeps on the grass\ntwo men\n");
    write("train.fr", "un chien court\nun homme dort dans l'herbe\ndeux hommes\n");
    write("reviews.csv", "text,label\ngood film,pos\nbad film,neg\n\"so, so\",neg\n");
    let sum = |at: usize| format!("{{\"question\": \"{at}+1=\", \"answer\": \"{}\"}}\n", at + 1);
    write("sums.jsonl", &(0..40).map(sum).collect::<String>());
    write("text.txt", &"to be or not to be, that is the question\n".repeat(30));
    folder
}

fn firebrick(folder: &Path, command: &str, run: &str) -> Command {
    fs::write(folder.join("run.ron"), run).unwrap();
    let mut firebrick = Command::cargo_bin("firebrick").unwrap();
    firebrick.current_dir(folder).args([command, "run.ron"]);
    firebrick
}

/// Returns the output of `firebrick data` for a run, without trailing blanks.
fn shown(task: &str, data: &str, batch: &str) -> String {
    let folder = folder();
    let run = format!("(task: {task}, data: ({data}), batch: ({batch}))");
    let mut command = firebrick(folder.path(), "data", &run);
    let assert = command.args(["--width", "120", "--batches", "1"]).assert().success();
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    assert!(!text.contains('\u{1b}'), "no colours where there is no terminal");
    text
}

const BPE: &str = "tokenizer: Bpe(vocabulary: 300), special: (pad: \"<pad>\", bos: \"<s>\", eos: \"</s>\")";

#[test]
fn labels_stand_under_tokens() {
    // No validation part, so that all three sentences are in one batch.
    let data = format!("path: \"entities.conll\", valid_fraction: 0.0, {BPE}");
    let text = shown("TokenClassification()", &data, "micro: 3");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("batch 0: 3 × "), "{text}");
    let labels = lines.iter().position(|line| line.contains("B-person") && line.contains("I-location"));
    let (tokens, labels) = (lines[labels.unwrap() - 1], lines[labels.unwrap()]);
    // The first letters of Maria and of New, with labels that begin in the same column.
    for (token, label) in [("M", "B-person"), ("N", "B-location")] {
        let column = |line: &str, text: &str| line[..line.find(text).unwrap()].chars().count();
        assert_eq!(column(tokens, token), column(labels, label), "{text}");
    }
    assert!(text.contains("samples      3, in 1 micro-batch"), "{text}");
    assert!(text.contains("supervised   9 labels"), "{text}");
}

#[test]
fn sources_stand_over_what_the_decoder_reads() {
    let data = format!(
        "path: \"train\", format: Parallel(source: \"en\", target: \"fr\"), valid_fraction: 0.0, \
         group_by_length: true, max_length: 64, {BPE}"
    );
    let text = shown("Seq2Seq(source: \"en\", target: \"fr\")", &data, "micro_tokens: 300");
    assert!(text.contains("source") && text.contains("decoder <pad> "), "{text}");
    assert!(text.contains("samples      3, in 1 micro-batch"), "{text}");
}

#[test]
fn every_task_is_shown() {
    let cases = [
        ("SequenceClassification()", "path: \"reviews.csv\"", "→ neg"),
        ("MaskedLm(masking: (probability: 1.0, masked: 1.0, random: 0.0))", "path: \"text.txt\"", "<mask>"),
        ("CausalLm(rows: Samples, prompt: \"question\", text: \"answer\")", "path: \"sums.jsonl\"", "</s>"),
        ("CausalLm(rows: Packed, prompt: \"question\", text: \"answer\")", "path: \"sums.jsonl\"", "</s>"),
    ];
    for (task, data, expected) in cases {
        let special = "special: (pad: \"<pad>\", eos: \"</s>\", mask: \"<mask>\")";
        let data = format!(
            "{data}, valid_fraction: 0.0, max_length: 40, tokenizer: Bpe(vocabulary: 300), {special}"
        );
        let text = shown(task, &data, "micro: 3");
        assert!(text.contains(expected), "{task}: {text}");
    }
}

#[test]
fn numbers_as_json_and_colours_where_asked_for() {
    let folder = folder();
    let run = "(data: (path: \"text.txt\", tokenizer: Characters, block: 16), batch: (micro: 4))";
    let assert = firebrick(folder.path(), "data", run).args(["--report", "json"]).assert().success();
    let numbers: serde_json::Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let of = |name: &str| numbers[name].as_u64().unwrap();
    assert_eq!(of("supervised"), 41 * 27 - 1, "nine tenths of the text, but for its first character");
    assert_eq!(of("tokens"), of("supervised") + of("samples"));
    firebrick(folder.path(), "data", run)
        .args(["--color", "always"])
        .assert()
        .success()
        .stdout(contains("\u{1b}["));
}

#[test]
fn malformed_records_stop_or_are_counted() {
    let folder = folder();
    let mut lines = fs::read_to_string(folder.path().join("sums.jsonl")).unwrap();
    lines.insert_str(0, "{\"question\": \"1+1=\"}\n{\"question\"\n");
    fs::write(folder.path().join("sums.jsonl"), lines).unwrap();
    let run = |malformed: &str| {
        format!(
            "(task: CausalLm(rows: Samples, prompt: \"question\", text: \"answer\"),
              data: (path: \"sums.jsonl\", tokenizer: Characters, max_length: 20{malformed}), batch: (micro: 4))"
        )
    };
    firebrick(folder.path(), "data", &run(""))
        .assert()
        .code(1)
        .stdout("")
        .stderr(contains("sums.jsonl:1, field `answer`: expected a text, found no such field"));
    firebrick(folder.path(), "data", &run(", malformed: Skip"))
        .assert()
        .success()
        .stderr(contains("skipped").and(contains("sums.jsonl:2")));
}

/// Returns a run that trains for two steps on this data.
fn training(task: &str, data: &str) -> String {
    format!(
        "(task: {task}, data: ({data}), model: Gpt(layers: 1, heads: 2, width: 8), optimizer: AdamW(),
          schedule: Constant(lr: 1e-2), batch: (micro: 4), steps: 2, output: \"out\")"
    )
}

#[test]
fn a_token_file_is_trained_on_in_place() {
    let folder = folder();
    let data = "path: \"text.txt\", tokenizer: Bpe(vocabulary: 270), block: 8";
    let run = training("CausalLm()", data);
    firebrick(folder.path(), "tokenize", &run)
        .args(["--output", "corpus.tokens"])
        .assert()
        .success()
        .stdout(contains("1 document in corpus.tokens").and(contains("File(\"corpus.tokens.tokenizer\")")));
    let data = "path: \"corpus.tokens\", tokenizer: File(\"corpus.tokens.tokenizer\"), block: 8";
    firebrick(folder.path(), "train", &training("CausalLm()", data)).assert().success();

    let other = "path: \"corpus.tokens\", tokenizer: Characters, block: 8";
    firebrick(folder.path(), "data", &training("CausalLm()", other))
        .assert()
        .code(1)
        .stderr(contains("corpus.tokens").and(contains("name the tokenizer")));
    let bytes = fs::read(folder.path().join("corpus.tokens")).unwrap();
    fs::write(folder.path().join("corpus.tokens"), &bytes[..bytes.len() - 1]).unwrap();
    firebrick(folder.path(), "train", &training("CausalLm()", data))
        .assert()
        .code(1)
        .stderr(contains("truncated"));
}

/// A token file has the same ids as the text: the same windows, and the same loss.
#[test]
fn a_token_file_gives_the_loss_of_its_text() {
    let folder = folder();
    let loss = |run: &str| -> f64 {
        let assert = firebrick(folder.path(), "train", run).args(["--report", "json"]).assert().success();
        let stdout = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
        let report: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        report["train_loss"].as_f64().unwrap()
    };
    let data = |path: &str| {
        format!(
            "path: \"{path}\", tokenizer: File(\"corpus.tokens.tokenizer\"), block: 8, valid_fraction: 0.0"
        )
    };
    let made = "path: \"text.txt\", tokenizer: Bpe(vocabulary: 270), block: 8";
    firebrick(folder.path(), "tokenize", &training("CausalLm()", made))
        .args(["--output", "corpus.tokens"])
        .assert()
        .success();
    let of_text = loss(&training("CausalLm()", &data("text.txt")));
    assert_eq!(loss(&training("CausalLm()", &data("corpus.tokens"))), of_text);
}

#[test]
fn samples_are_trained_on_padded_and_packed() {
    for rows in ["Samples", "Packed"] {
        let folder = folder();
        let task = format!("CausalLm(rows: {rows}, prompt: \"question\", text: \"answer\")");
        let run = training(&task, "path: \"sums.jsonl\", tokenizer: Characters, max_length: 16");
        firebrick(folder.path(), "train", &run).assert().success().stdout(contains("valid loss"));
    }
}

#[test]
fn a_task_that_the_model_does_not_learn_is_refused_before_anything_is_read() {
    let folder = folder();
    let run = training("TokenClassification()", "path: \"no such file\", tokenizer: Characters");
    firebrick(folder.path(), "train", &run)
        .assert()
        .code(1)
        .stderr(contains("one that learns `TokenClassification`: `Bert`").and(contains("found `Gpt`")));
}

#[test]
fn the_part_that_is_too_short_is_named() {
    let folder = folder();
    let run = "(data: (path: \"text.txt\", valid: \"one.txt\", tokenizer: Characters, block: 8), batch: (micro: 4))";
    fs::write(folder.path().join("one.txt"), "t").unwrap();
    firebrick(folder.path(), "data", run)
        .assert()
        .code(1)
        .stderr(contains("the validation part of the data: the text has 1 token but needs at least 2"));
}

#[test]
fn a_stream_is_grouped_in_large_windows_only() {
    let folder = folder();
    let run = |window: usize| {
        format!(
            "(task: CausalLm(rows: Samples, prompt: \"question\", text: \"answer\"), data: (path: \"sums.jsonl\",
              tokenizer: Characters, max_length: 16, stream: {window}, group_by_length: true), batch: (micro: 4))"
        )
    };
    let refused = firebrick(folder.path(), "data", &run(199)).assert().code(1);
    refused.stderr(contains("`data.stream`: expected at least 200").and(contains("found 199")));
    firebrick(folder.path(), "data", &run(200)).assert().success().stdout(contains("samples      40"));
}

#[test]
fn contradictions_are_told_with_their_line() {
    let folder = folder();
    for (data, expected) in [
        ("tokenizer: Characters, block: 8", "`data.path` must be given"),
        ("path: \"text.txt\", tokenizer: Characters", "`data.block` must be given"),
        ("path: \"text.txt\", tokenizer: Characters, block: 8, stream: 10", "`data.stream` must be left out"),
        ("path: [], tokenizer: Characters, block: 8", "at least one path"),
        ("path: \"text.txt\", tokenizer: Characters, blok: 8", "did you mean `block`?"),
    ] {
        let run = format!("(\n  data: ({data}),\n  batch: (micro: 4),\n)");
        let said =
            firebrick(folder.path(), "data", &run).assert().code(1).stdout("").get_output().stderr.clone();
        let said = String::from_utf8(said).unwrap();
        assert!(said.starts_with("error: run.ron:2") && said.contains(expected), "{said}");
    }
}
