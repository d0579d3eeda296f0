//! What is cut off by the maximum length is said, once, and is in the report.

use std::fs;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::json;

use crate::small_run::{firebrick, folder_of, report, train};

const RUN: &str = r#"(
    task: CausalLm(rows: Samples),
    data: (path: "a.jsonl", valid: "b.jsonl", tokenizer: Characters, max_length: 4),
    model: Gpt(layers: 1, heads: 1, width: 8),
    optimizer: AdamW(),
    schedule: Constant(lr: 1e-2),
    batch: (micro: 2),
    steps: 3,
    evaluate_every: 1,
    output: "out",
)
"#;

#[test]
fn cut_tokens_are_counted_for_each_part_of_the_data() {
    let folder = folder_of(RUN, 1);
    let write = |name: &str, texts: &[&str]| {
        let lines = texts.iter().map(|text| format!("{{\"text\": {text:?}}}\n"));
        fs::write(folder.path().join(name), lines.collect::<String>()).unwrap();
    };
    write("a.jsonl", &["abcdef", "abc", "abcde", "abcd"]);
    write("b.jsonl", &["aaaaaaaaaa"]);
    let mut run = train(folder.path(), &[]);
    let assert = run.assert().success();
    let said = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    let line = "cut off at `data.max_length`: 3 tokens of 2 texts of the training data";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert_eq!(said.matches("6 tokens of 1 text of the validation data").count(), 1, "{said}");
    let expected = json!([
        {"data": "training", "texts": 2, "tokens": 3},
        {"data": "validation", "texts": 1, "tokens": 6},
    ]);
    assert_eq!(report(&mut train(folder.path(), &[]))["truncated"], expected);
    let saved = fs::read_to_string(folder.path().join("out/report.json")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&saved).unwrap()["truncated"], expected);
    let text = firebrick(folder.path()).args(["train", "run.ron"]).assert().success();
    text.stdout(contains("3 tokens of 2 texts of the training data"));
    // Data that is evaluated is not called training data.
    let evaluated = firebrick(folder.path()).args(["eval", "out", "--data", "b.jsonl"]).assert().success();
    evaluated.stderr(contains("6 tokens of 1 text of the evaluated data"));
    // With a stride nothing is lost, and neither with room.
    for set in ["data.stride=1", "data.max_length=10"] {
        let whole = train(folder.path(), &["--set", set]).assert().success();
        whole.stderr(contains("cut off").not()).stdout(contains("truncated").not());
    }
    // A stream counts them when it counts its samples.
    let streamed = train(folder.path(), &["--set", "data.stream=2"]).assert().success();
    let said = String::from_utf8(streamed.get_output().stderr.clone()).unwrap();
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert_eq!(said.matches("1 text of the validation data").count(), 1, "{said}");
    // The preview says it too.
    firebrick(folder.path()).args(["data", "run.ron"]).assert().success().stderr(contains(line));
}
