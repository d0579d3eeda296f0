//! With a stride, scores are those of records, as `predict` answers for them. Without items, there are none.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::small_run::{firebrick, report};

fn folder(task: &str, record: impl Fn(usize) -> Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let run = format!(
        r#"(
            task: {task},
            data: (path: "train.jsonl", valid: "valid.jsonl", tokenizer: Bpe(vocabulary: 280),
                special: (pad: "<pad>", bos: "<s>", eos: "</s>"), max_length: 12, stride: 4, cache: false),
            model: Bert(layers: 1, heads: 1, width: 8),
            optimizer: AdamW(), schedule: Constant(lr: 3e-2), batch: (micro: 3), steps: 12, evaluate_every: 12,
            device: "cpu", output: "out",
        )"#
    );
    fs::write(folder.path().join("run.ron"), run).unwrap();
    for (name, numbers) in [("train", 0..20), ("valid", 20..27)] {
        let lines: String = numbers.map(|at| format!("{}\n", record(at))).collect();
        fs::write(folder.path().join(format!("{name}.jsonl")), lines).unwrap();
    }
    folder
}

/// Trains, and returns the scores of the last evaluation, the evaluation by `eval`, and the answers of `predict`.
fn scored(folder: &Path) -> (Value, Value, Vec<Value>) {
    firebrick(folder).args(["train", "run.ron", "--plain"]).assert().success();
    let log = fs::read_to_string(folder.join("out/metrics.jsonl")).unwrap();
    let mut lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let valid = lines.rfind(|line| line["kind"] == "valid").unwrap();
    let evaluated = report(firebrick(folder).args(["eval", "out", "--report", "json"]));
    let answers = firebrick(folder).args(["predict", "out"]).assert().success().get_output().stdout.clone();
    let answers = String::from_utf8(answers).unwrap();
    (valid, evaluated, answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn assert_close(found: &Value, expected: f64) {
    assert!((found.as_f64().unwrap() - expected).abs() < 1e-9, "{found} {expected}");
}

#[test]
fn words_in_several_pieces_count_once() {
    let names = ["Maria", "met", "Lee", "Ana", "near", "the", "river"];
    let folder = folder("TokenClassification(subwords: All)", |at| {
        let words: Vec<_> = (0..5 + at).map(|word| names[(word * word + at) % 7]).collect();
        let labels: Vec<_> = words.iter().map(|word| if word.len() < 4 { "B-PER" } else { "O" }).collect();
        json!({"words": words, "labels": labels})
    });
    let (valid, evaluated, answers) = scored(folder.path());
    assert_eq!((answers.len(), &evaluated["samples"]), (7, &json!(7)));
    let (mut right, mut all) = (0, 0);
    for answer in &answers {
        let [predicted, expected] = ["predicted", "expected"].map(|name| answer[name].as_array().unwrap());
        right += predicted.iter().zip(expected).filter(|(a, b)| a == b).count();
        all += expected.len();
    }
    let accuracy = right as f64 / all as f64;
    assert_close(&evaluated["scores"]["accuracy"], accuracy);
    assert_close(&valid["scores"]["accuracy"], accuracy);
    // More labels than words count in the loss.
    assert!(evaluated["items"].as_u64().unwrap() > all as u64);
}

#[test]
fn texts_in_several_pieces_count_once() {
    let folder = folder("SequenceClassification()", |at| {
        let text = ["good film", "bad film, very bad", "so so"][at % 3].repeat(1 + at);
        let label = ["pos", "neg", "other"][at * at % 3];
        json!({"text": text, "label": label})
    });
    let (valid, evaluated, answers) = scored(folder.path());
    assert_eq!((answers.len(), &evaluated["samples"]), (7, &json!(7)));
    let right = answers.iter().filter(|answer| answer["predicted"] == answer["expected"]).count();
    assert_close(&evaluated["scores"]["accuracy"], right as f64 / 7.0);
    assert_close(&valid["scores"]["accuracy"], right as f64 / 7.0);
    assert!(evaluated["items"].as_u64().unwrap() > 7);
}

/// Nothing of the validation data is masked. The training goes on, and what it learned is saved.
#[test]
fn an_evaluation_without_items_does_not_end_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = r#"(
        task: MaskedLm(masking: (probability: 0.01, masked: 1.0, random: 0.0)),
        data: (path: "train.jsonl", valid: "valid.jsonl", tokenizer: Bpe(vocabulary: 280),
            special: (pad: "<pad>", bos: "<s>", eos: "</s>", mask: "<mask>"), max_length: 64, cache: false),
        model: Bert(layers: 1, heads: 1, width: 8),
        optimizer: AdamW(), schedule: Constant(lr: 1e-3), batch: (micro: 40), steps: 2, evaluate_every: 1,
        device: "cpu", output: "out",
    )"#;
    fs::write(folder.path().join("run.ron"), run).unwrap();
    let lines =
        (0..40).map(|at| format!("{{\"text\": \"{at} ships sail by the quiet bay of kings, {at}\"}}\n"));
    fs::write(folder.path().join("train.jsonl"), lines.collect::<String>() + "{\"text\": \"\"}\n").unwrap();
    fs::write(folder.path().join("valid.jsonl"), "{\"text\": \"a\"}\n").unwrap();
    let nothing = "has anything to predict: nothing is masked";
    firebrick(folder.path()).args(["train", "run.ron", "--plain"]).assert().success().stderr(
        contains("no evaluation after update 2: none of 1 sample of the validation data")
            .and(contains(nothing))
            .and(contains("left out 1 record with nothing to learn")),
    );
    assert!(folder.path().join("out/pretrained/model.safetensors").is_file());
    // There, it is all that was asked for.
    firebrick(folder.path()).args(["eval", "out"]).assert().code(1).stderr(contains(nothing));
}

/// All records of the validation data are left out. The training goes on, and each evaluation says that it has nothing to
/// score. A best model cannot be selected.
#[test]
fn validation_data_without_a_sample_does_not_end_the_run() {
    let words = [json!({"words": ["a", "b"], "labels": ["O", "B-X"]}), json!({"words": [], "labels": []})];
    let texts = [json!({"text": "a b c d"}), json!({"text": ""})];
    let pairs = [
        json!({"prompt": "a", "chosen": "b", "rejected": "c"}),
        json!({"prompt": "a prompt that is longer than a row", "chosen": "b", "rejected": "c"}),
    ];
    let bert = "model: Bert(layers: 1, heads: 1, width: 8)";
    let gpt = "model: Gpt(layers: 1, heads: 1, width: 8)";
    for (task, model, [train, valid], score) in [
        ("TokenClassification()", bert, words, "f1"),
        ("MaskedLm()", bert, texts, ""),
        ("Dpo()", gpt, pairs, "reward_margin"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let run = format!(
            r#"(
                task: {task},
                data: (path: "train.jsonl", valid: "valid.jsonl", tokenizer: Bpe(vocabulary: 280),
                    special: (pad: "<pad>", bos: "<s>", eos: "</s>", mask: "<mask>"), max_length: 12, cache: false),
                {model}, optimizer: AdamW(), schedule: Constant(lr: 1e-3), batch: (micro: 2), steps: 2,
                device: "cpu", output: "out",
            )"#
        );
        fs::write(folder.path().join("run.ron"), run).unwrap();
        fs::write(folder.path().join("train.jsonl"), format!("{train}\n").repeat(8)).unwrap();
        fs::write(folder.path().join("valid.jsonl"), format!("{valid}\n").repeat(3)).unwrap();
        let said = "warning: no evaluation has anything to score: all 3 records of `data.valid`, valid.jsonl, are left out";
        firebrick(folder.path()).args(["train", "run.ron", "--plain"]).assert().success().stderr(
            contains(said)
                .and(contains("left out 3 records with nothing to learn"))
                .and(contains("no evaluation after update 2: no record of the validation data has anything")),
        );
        assert!(folder.path().join("out/pretrained/model.safetensors").is_file());
        let of_eval = firebrick(folder.path()).args(["eval", "out"]).assert().code(1);
        of_eval.stderr(contains("has no samples (skipped 0 malformed records, left out 3 records"));

        let mut refused = vec![("early_stopping=1".to_string(), "which `early_stopping` needs")];
        if !score.is_empty() {
            refused.push((format!("best_by=\"{score}\""), "selects the best model"));
        }
        for (set, expected) in refused {
            let options = ["train", "run.ron", "--plain", "--output", "other", "--set", &set];
            firebrick(folder.path()).args(options).assert().code(1).stderr(contains(expected));
            assert!(!folder.path().join("other/metrics.jsonl").exists());
        }
        // A file without a record is a mistake.
        fs::write(folder.path().join("valid.jsonl"), "").unwrap();
        let options = ["train", "run.ron", "--plain", "--output", "other"];
        firebrick(folder.path()).args(options).assert().code(1).stderr(contains("valid.jsonl"));
    }
}
