//! `firebrick generate` on standard input: texts as the prompts come.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::json;

use crate::small_run::{RUN, firebrick, folder_of, train};

const GENERATE: [&str; 6] = ["generate", "out", "--max-new-tokens", "8", "--temperature", "0"];

#[test]
fn a_prompt_is_answered_before_the_next_one_is_written() {
    let folder = folder_of(RUN, 40);
    train(folder.path(), &["--steps", "2"]).assert().success();
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder.path())
        .args(GENERATE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut prompts = child.stdin.take().unwrap();
    let mut texts = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut text = |prompt: &str| {
        writeln!(prompts, "{prompt}").unwrap();
        texts.next().unwrap().unwrap()
    };
    let (first, second) = (text("to be"), text("or not"));
    assert!(first.starts_with("to be") && second.starts_with("or not"), "{first} {second}");
    drop(prompts);
    assert!(child.wait().unwrap().success());

    // The same texts as of prompts that are given together, and by several ranks, which read all of them first.
    let given = |more: &[&str]| {
        let mut command = firebrick(folder.path());
        command.args(GENERATE).args(more).write_stdin("to be\nor not\n");
        command.assert().success()
    };
    let expected = format!("{first}\n{second}\n");
    given(&[]).stdout(expected.clone());
    given(&["--ranks", "2"]).stdout(expected.clone());
    given(&["--prompt", "to be", "--prompt", "or not"]).stdout(expected);

    let mut wrong = firebrick(folder.path());
    wrong.args(GENERATE).write_stdin(&b"to be\nr\xe9sum\xe9\nor not\n"[..]);
    let wrong = wrong.assert().code(1).stderr(contains("line 2: expected UTF-8 text"));
    wrong.stdout(contains(first.clone()).and(contains("or not").not()));

    // A line without an end does not fill the memory.
    for ranks in ["1", "2"] {
        let mut endless = firebrick(folder.path());
        let prompts = [&b"to be\n"[..], &vec![b'o'; 20 << 20], b"\nor not\n"].concat();
        let endless = endless.args(GENERATE).args(["--ranks", ranks]).write_stdin(prompts).assert().code(1);
        endless.stderr(contains("line 2: expected a line of at most 1048576 bytes"));
    }
}

/// Llama 2's decoder removes the space at the beginning of a text, which is the one between a prompt and its
/// continuation if that is decoded alone.
#[test]
fn the_space_after_a_prompt_is_kept() {
    let special = |id: usize, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let names = ["<pad>", "<s>", "</s>", "<unk>", "▁w1", "▁w2", "▁w3", "▁w4"];
    let ids = serde_json::Map::from_iter((0..).zip(names).map(|(id, name)| (name.to_owned(), json!(id))));
    let special: Vec<_> = names[..4].iter().enumerate().map(|(id, name)| special(id, name)).collect();
    let replaced =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "post_processor": null,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced(" ", "▁")]},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": "▁"}, "behavior": "MergedWithNext", "invert": false},
        "decoder": {"type": "Sequence", "decoders": [
            replaced("▁", " "), {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": ids},
    });
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    write("tokenizer.json", tokenizer.to_string());
    let names = json!({"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"});
    write("tokenizer_config.json", names.to_string());
    write("data.jsonl", "{\"text\": \"w1 w2 w3 w4 w1 w2 w3 w4 w1 w2 w3 w4\"}\n".repeat(8));
    let run = r#"(
        task: CausalLm(rows: Samples),
        data: (path: "data.jsonl", valid: "data.jsonl", tokenizer: File("tokenizer.json"), max_length: 16),
        model: Llama(layers: 1, heads: 1, width: 16),
        optimizer: AdamW(), schedule: Constant(lr: 1e-2), batch: (micro: 8), steps: 60, output: "out",
    )"#;
    write("run.ron", run.to_owned());
    firebrick(folder.path()).args(["train", "run.ron", "--device", "cpu", "-q"]).assert().success();
    let mut generate = firebrick(folder.path());
    generate.args(["generate", "out", "--prompt", "w1 w2", "--max-new-tokens", "2", "--temperature", "0"]);
    generate.assert().success().stdout("w1 w2 w3 w4\n");
}
