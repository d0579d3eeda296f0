//! Text of others, such as run files, data and downloaded models, gives no commands to the terminal.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use assert_cmd::Command;

use crate::small_run::{RUN, firebrick, folder_of, train};

/// Colours, the title of the window, a command of one character in place of ESC and `[`, and going back over a line.
const HOSTILE: &str = "\u{1b}[31mred\u{1b}]0;pwned\u{7}\u{9b}2J\r";

/// Asserts that all that a command writes is plain. Returns whether it quotes the hostile text.
fn assert_plain(name: &str, command: &mut Command) -> bool {
    let output = command.output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let obeyed = text.find(|letter: char| letter.is_control() && !matches!(letter, '\n' | '\t'));
    assert!(obeyed.is_none(), "{name}: {text:?}");
    text.contains("pwned")
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
}

#[test]
fn messages_give_the_terminal_no_commands() {
    let folder = folder_of(RUN, 40);
    let folder = folder.path();
    let json = serde_json::to_string(HOSTILE).unwrap();
    train(folder, &["--steps", "2", "--set", "checkpoints=(every: 1)"]).assert().success();
    let quotes = Cell::new(0);
    let says = |arguments: &[&str]| {
        let is_quoted = assert_plain(&format!("{arguments:?}"), firebrick(folder).args(arguments));
        quotes.set(quotes.get() + usize::from(is_quoted));
    };

    // A run file's values and names.
    for (at, text) in [
        format!("(task: \"{HOSTILE}\")"),
        format!("(task: {HOSTILE}())"),
        RUN.replace("\"text.txt\"", &format!("\"{HOSTILE}.txt\"")),
        RUN.replace("Gpt(", &format!("Gpt(\"{HOSTILE}\": ")),
    ]
    .iter()
    .enumerate()
    {
        let name = format!("hostile-{at}.ron");
        write(folder, &name, text);
        says(&["train", &name]);
        says(&["data", &name]);
    }
    // Arguments.
    says(&["train", "run.ron", "--set", &format!("{HOSTILE}=1")]);
    says(&["train", "run.ron", "--set", &format!("seed={HOSTILE}")]);
    says(&["train", "run.ron", "--resume", HOSTILE]);
    says(&["train", &format!("{HOSTILE}.ron")]);
    says(&[HOSTILE]);
    says(&["train", "run.ron", &format!("--{HOSTILE}")]);

    // Names of fields of data.
    write(folder, "names.jsonl", &format!("{{{json}: 1}}\n").repeat(4));
    says(&["init", "SequenceClassification", "--data", "names.jsonl"]);
    says(&["predict", "out", "--data", "names.jsonl", "--set", "data.format=Jsonl"]);
    let mut predict = firebrick(folder);
    assert_plain("predict -", predict.args(["predict", "out", "-"]).write_stdin(format!("{{{json}: 1}}\n")));

    // A downloaded model: its kind, the names of its tensors, and its template.
    let model = folder.join("model");
    fs::create_dir(&model).unwrap();
    fs::copy(folder.join("out/pretrained/tokenizer.json"), model.join("tokenizer.json")).unwrap();
    fs::copy(folder.join("out/pretrained/model.safetensors"), model.join("model.safetensors")).unwrap();
    write(&model, "config.json", &format!("{{\"model_type\": {json}}}"));
    says(&["train", "run.ron", "--set", "model=Pretrained(\"model\")", "--output", "other"]);
    let index = format!("{{\"weight_map\": {{{json}: {json}}}}}");
    fs::copy(folder.join("out/pretrained/config.json"), model.join("config.json")).unwrap();
    fs::remove_file(model.join("model.safetensors")).unwrap();
    write(&model, "model.safetensors.index.json", &index);
    says(&["generate", "out", "--weights", "model", "--prompt", "to be"]);

    // The log and the checkpoints of a run that came from elsewhere.
    let line = format!("{{\"kind\":\"valid\",\"step\":3,\"loss\":1.0,\"scores\":{{{json}:0.5}}}}\n");
    let log = fs::read_to_string(folder.join("out/metrics.jsonl")).unwrap();
    write(folder, "out/metrics.jsonl", &(log + &line));
    // The report is newer than the log, so the run has ended.
    let report = fs::read_to_string(folder.join("out/report.json")).unwrap();
    write(folder, "out/report.json", &report);
    says(&["watch", "out"]);
    says(&["compare", "out", "out"]);
    write(folder, "ds_config.json", &format!("{{{json}: {json}}}"));
    says(&["import", "ds_config.json"]);
    // Otherwise this test would see nothing.
    assert!(quotes.get() >= 10, "only {} commands quote the text", quotes.get());
}
