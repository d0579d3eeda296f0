//! A run on conversations, from its records to answers.

use std::fs;

use predicates::prelude::*;
use predicates::str::contains;

use crate::small_run::{at_root, firebrick};

#[test]
fn a_run_on_conversations_answers_in_its_template() {
    let output = tempfile::tempdir().unwrap();
    let folder = output.path().join("run");
    let set = format!("output={:?}", folder.display().to_string());
    at_root().args(["train", "examples/chat.ron", "--set", &set]).assert().success();
    let generate = |options: &[&str]| {
        let mut command = firebrick(output.path());
        command.args(["generate", "run", "--device", "cpu"]).args(options);
        command.assert().success()
    };
    generate(&["--prompt", "What color is snow?"]).stdout("It is white.\n");
    let raw = "<|im_start|>user\nWhat color is coal?<|im_end|>\n<|im_start|>assistant\n";
    generate(&["--raw", "--prompt", raw]).stdout(contains("It is black."));
    let template = fs::read_to_string(folder.join("pretrained/chat_template.jinja")).unwrap();
    assert!(template.contains("{% endgeneration %}"));

    let mut predict = at_root();
    predict.arg("predict").arg(&folder).args(["--data", "examples/data/chat.valid.jsonl"]);
    predict.assert().success().stderr(contains("8 answers, 8 of 8 as expected"));
}

#[test]
fn a_template_that_fails_stops_the_preview() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.jinja"), "\n{{ raise_exception('no such roles') }}").unwrap();
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    fs::write(folder.path().join("chat.jsonl"), format!("{line}\n")).unwrap();
    let run = r#"(
        task: CausalLm(rows: Samples, chat: (template: File("t.jinja"))),
        data: (path: "chat.jsonl", tokenizer: Bpe(vocabulary: 258), max_length: 64),
        batch: (micro: 1),
    )"#;
    fs::write(folder.path().join("run.ron"), run).unwrap();
    let said = firebrick(folder.path()).args(["data", "run.ron"]).assert().code(1);
    said.stderr(contains("chat.jsonl:1").and(contains("t.jinja, line 2")).and(contains("no such roles")));
}
