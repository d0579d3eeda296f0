//! A run on preferences, from its records to scores and answers.

use std::fs;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::small_run::{at_root, firebrick};

#[test]
fn a_run_learns_to_prefer_the_better_answers() {
    let output = tempfile::tempdir().unwrap();
    let folder = output.path().join("run");
    let set = format!("output={:?}", folder.display().to_string());
    let mut train = at_root();
    train.args(["train", "examples/dpo.ron", "--set", &set]);
    train.assert().success().stdout(contains("best reward_margin")).stderr(contains("reference model"));
    let json = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
    };
    let report = json("report.json");
    let scores = &report["best_valid_scores"];
    assert!(scores["reward_margin"].as_f64().unwrap() > 1.0, "{scores}");
    assert!(scores["reward_accuracy"].as_f64().unwrap() > 0.8, "{scores}");
    let log = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert!((first["loss"].as_f64().unwrap() - 2f64.ln()).abs() < 1e-5, "{first}");

    // The answers of the reference model are kept, so the same numbers come out.
    let mut eval = firebrick(output.path());
    let eval = eval.args(["eval", "run", "--report", "json", "--device", "cpu"]).current_dir(output.path());
    let data = std::path::absolute("../examples/data/preferences.valid.jsonl").unwrap();
    let eval = eval.arg("--data").arg(&data).assert().success();
    let text = String::from_utf8(eval.get_output().stdout.clone()).unwrap();
    let found: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for (name, score) in scores.as_object().unwrap() {
        let (found, score) = (found["scores"][name].as_f64().unwrap(), score.as_f64().unwrap());
        assert!((found - score).abs() <= 1e-4 * score.abs().max(1.0), "{name}: {found} {score}");
    }
    let other = r#"{"prompt": "", "chosen": "a", "rejected": "b"}"#;
    fs::write(output.path().join("other.jsonl"), other).unwrap();
    let mut eval = firebrick(output.path());
    let eval = eval.args(["eval", "run", "--device", "cpu", "--data", "other.jsonl"]).assert().failure();
    eval.stderr(
        contains("sample 0 of the data").and(contains("leave out --data")).and(contains("resume").not()),
    );

    let mut generate = firebrick(output.path());
    let generate = generate.args(["generate", "run", "--device", "cpu", "--max-new-tokens", "4"]);
    generate.args(["--prompt", "What color is snow?"]).assert().success();

    // The standard measures read it as a causal language model.
    let question = r#"{"context": "Snow is", "endings": ["white", "black"], "label": 0}"#;
    fs::write(output.path().join("choices.jsonl"), question).unwrap();
    fs::write(output.path().join("text.txt"), "Snow is white.").unwrap();
    for (measure, data) in [("--choices", "choices.jsonl"), ("--perplexity", "text.txt")] {
        let mut eval = firebrick(output.path());
        eval.args(["eval", "run", "--device", "cpu", measure, "--data", data]).assert().success();
    }
    // Of a pair, the chosen conversation is measured, as the template writes it.
    let perplexity = |data: &str, record: &str| -> Value {
        fs::write(output.path().join(data), record).unwrap();
        let mut eval = firebrick(output.path());
        let options = ["eval", "run", "--device", "cpu", "--report", "json", "--perplexity", "--data", data];
        let found = eval.args(options).assert().success().get_output().stdout.clone();
        serde_json::from_slice(&found).unwrap()
    };
    let message = |role: &str, content: &str| format!(r#"[{{"role": "{role}", "content": "{content}"}}]"#);
    let (question, white) = (message("user", "What color is snow?"), message("assistant", "It is white."));
    let pair = |rejected: &str| {
        format!(
            r#"{{"prompt": {question}, "chosen": {white}, "rejected": {}}}"#,
            message("assistant", rejected)
        )
    };
    let text =
        "<|im_start|>user\nWhat color is snow?<|im_end|>\n<|im_start|>assistant\nIt is white.<|im_end|>\n";
    let found = perplexity("pair.jsonl", &pair("Snow is black."));
    assert_eq!(found, perplexity("other_pair.jsonl", &pair("No.")));
    assert_eq!(found, perplexity("conversation.txt", text));
}

#[test]
fn both_answers_of_a_pair_are_shown() {
    let mut data = at_root();
    data.args(["data", "examples/dpo.ron", "--width", "200", "--batches", "1", "--rows", "1"]);
    let shown = data.assert().success();
    shown.stdout(contains("chosen").and(contains("rejected")).and(contains("samples      40")));
}

#[test]
fn a_run_file_is_suggested_and_a_prompt_may_be_typed() {
    let folder = tempfile::tempdir().unwrap();
    let data = std::path::absolute("../examples/data/preferences.jsonl").unwrap();
    let mut init = firebrick(folder.path());
    let init = init.args(["init", "Dpo", "--data"]).arg(data).assert().success();
    let suggested =
        init.stdout(contains("task: Dpo(chat: (template: ChatMl))").and(contains("reward_margin")));
    fs::write(folder.path().join("run.ron"), &suggested.get_output().stdout).unwrap();
    let mut train = firebrick(folder.path());
    let sets = ["steps=1", "epochs=None", "schedule.warmup=0", "evaluate_samples=2", "output=\"run\""];
    train.args(["train", "run.ron"]).args(sets.iter().flat_map(|set| ["--set", *set]));
    train.assert().success();
    // The reference model was asked about the first validation pairs only.
    let mut eval = firebrick(folder.path());
    let eval = eval.args(["eval", "run", "--report", "json", "--device", "cpu"]).assert().success();
    let found: Value = serde_json::from_slice(&eval.get_output().stdout).unwrap();
    assert_eq!(found["samples"], 2, "{found}");
    let mut predict = firebrick(folder.path());
    predict.args(["predict", "run", "-", "--max-new-tokens", "2"]).write_stdin("What color is snow?\n");
    predict.assert().success().stdout(contains("<|im_start|>user\\nWhat color is snow?"));
    let chat = std::path::absolute("../examples/data/chat.jsonl").unwrap();
    let mut init = firebrick(folder.path());
    let init = init.args(["init", "Dpo", "--data"]).arg(chat).assert().failure();
    init.stderr(contains("each record needs a `chosen` and a `rejected` answer"));
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pairs.jsonl"), "{\"prompt\": \"a\", \"chosen\": \"b\"}\n").unwrap();
    let refused = |task: &str, data: &str, model: &str, expected: &str| {
        let run = format!(
            "(task: {task}, data: (path: \"pairs.jsonl\", tokenizer: Bpe(vocabulary: 258){data}), model: {model}, batch: (micro: 1), optimizer: AdamW(), schedule: Constant(lr: 1e-3), steps: 1, output: \"out\")"
        );
        fs::write(folder.path().join("run.ron"), run).unwrap();
        let mut train = firebrick(folder.path());
        train
            .args(["train", "run.ron", "--set", "output=\"out\""])
            .assert()
            .failure()
            .stderr(contains(expected));
    };
    let (length, gpt) = (", max_length: 8", "Gpt(layers: 1, heads: 1, width: 8)");
    refused("Dpo(beta: 0)", length, gpt, "`task.beta` must be above 0 and at most 1000, found 0");
    refused(
        "Dpo(label_smoothing: 0.5)",
        length,
        gpt,
        "`task.label_smoothing` must be at least 0 and below 0.5",
    );
    refused("Dpo()", "", gpt, "`data.max_length` must be given");
    let both = ", max_length: 8, block: 8";
    refused("Dpo()", both, gpt, "`data.block` must be left out for Dpo, which reads no windows");
    refused("Dpo()", length, gpt, "field `rejected`: expected a text");
    // These are known before the data is read.
    let with = |more: &str| format!("{gpt}, {more}");
    let expected = "`label_smoothing` must be left out for this task (Dpo)";
    refused("Dpo()", length, &with("label_smoothing: 0.1"), expected);
    refused("Dpo()", length, &with("best_by: \"margin\""), "reward_margin");
    refused("Dpo(reference: AdapterOff)", length, gpt, "no strategy adapts the model: add Lora(..)");
    refused("Dpo(chosen: \"better\")", length, gpt, "field `better`: expected a text, or a list of messages");
    refused("Dpo()", length, "Bert(layers: 1, heads: 1, width: 8)", "`Gpt`, `Llama`");
    let pair = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n".repeat(20);
    fs::write(folder.path().join("pairs.jsonl"), pair).unwrap();
    refused("Dpo()", length, gpt, "pairs.jsonl:1, field `rejected`: expected another answer than `chosen`");
}
