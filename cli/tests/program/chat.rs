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

/// The tokenizer's `eos` ends documents; `<|im_end|>` ends answers, as in most chat models.
#[test]
fn a_pretrained_model_learns_to_answer_and_heeds_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let things = [("snow", "white", "blanche"), ("coal", "black", "noir"), ("grass", "green", "verte")];
    let mut chats = String::new();
    let mut text = String::new();
    for (thing, color, couleur) in things {
        let turn = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
        let question = format!("What color is {thing}?");
        let [english, french] = [format!("It is {color}."), format!("Elle est {couleur}.")];
        text += &format!("{question}\nAnswer in French.\n{english}\n{french}\n");
        let question = turn("user", &question);
        for turns in [
            vec![question.clone(), turn("assistant", &english)],
            vec![turn("system", "Answer in French."), question, turn("assistant", &french)],
        ] {
            chats += &format!("{}\n", serde_json::json!({ "messages": turns }));
        }
    }
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("text.txt", &text.repeat(8));
    write("chats.jsonl", &chats.repeat(4));
    let model = "Llama(layers: 2, heads: 4, width: 64)";
    let run = |task: &str, data: &str, model: &str, rest: &str| {
        format!(
            "(task: CausalLm({task}), data: ({data}), model: {model}, optimizer: AdamW(), \
             schedule: Constant(lr: 5e-3), {rest})"
        )
    };
    let special =
        r#"(pad: "<|endoftext|>", eos: "<|endoftext|>", additional: ["<|im_start|>", "<|im_end|>"])"#;
    let data = format!(r#"path: "text.txt", tokenizer: Bpe(vocabulary: 320), special: {special}, block: 32"#);
    write("text.ron", &run("", &data, model, r#"batch: (micro: 4), steps: 10, output: "base""#));
    let data = r#"path: "chats.jsonl", tokenizer: File("base/pretrained"), max_length: 96"#;
    let (chat, pretrained) = ("rows: Packed, chat: (template: ChatMl)", r#"Pretrained("base/pretrained")"#);
    write("chat.ron", &run(chat, data, pretrained, r#"batch: (micro: 2), epochs: 60, output: "chat""#));
    for run in ["text.ron", "chat.ron"] {
        firebrick(folder.path()).args(["train", run]).assert().success();
    }
    let generate = |options: &[&str]| {
        let mut command = firebrick(folder.path());
        command.args(["generate", "chat", "--prompt", "What color is coal?", "--device", "cpu"]);
        command.args(options).assert().success()
    };
    generate(&[]).stdout("It is black.\n");
    generate(&["--system", "Answer in French."]).stdout("Elle est noir.\n");
    let generation = fs::read(folder.path().join("chat/pretrained/generation_config.json")).unwrap();
    let generation: serde_json::Value = serde_json::from_slice(&generation).unwrap();
    let tokens = fs::read(folder.path().join("chat/tokenizer.json")).unwrap();
    let tokens: serde_json::Value = serde_json::from_slice(&tokens).unwrap();
    let added = tokens["added_tokens"].as_array().unwrap();
    let id = |text: &str| &added.iter().find(|token| token["content"] == text).unwrap()["id"];
    assert_eq!(generation["eos_token_id"], serde_json::json!([id("<|endoftext|>"), id("<|im_end|>")]));
}
