//! `firebrick predict RUN -`: answers on standard input, as they come.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use tempfile::TempDir;

use crate::small_run::at_root;

fn trained(example: &str, folder: &Path) -> String {
    let out = folder.join("out").display().to_string();
    let mut train = at_root();
    train.args(["train", &format!("examples/{example}.ron"), "--steps", "2", "--output", &out]);
    train.assert().success();
    out
}

/// An answer comes while the input is still open.
#[test]
fn a_line_is_answered_before_the_next_one_is_written() {
    let folder = TempDir::new().unwrap();
    let out = trained("sequence_classification", folder.path());
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir("..")
        .args(["predict", &out, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut asked = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answer = |line: &str| -> Value {
        writeln!(asked, "{line}").unwrap();
        serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap()
    };
    let text = answer("rain in the north");
    assert_eq!(text["text"], "rain in the north");
    assert!(text["predicted"].is_string() && text.get("expected").is_none(), "{text}");
    let record = answer("\n{\"text\": \"rain in the north\", \"label\": \"weather\"}");
    assert_eq!((&record["predicted"], &record["expected"]), (&text["predicted"], &"weather".into()));
    drop(asked);
    assert!(child.wait().unwrap().success());
}

/// The lines before a malformed one are answered.
#[test]
fn a_malformed_line_ends_the_answers_and_not_those_before_it() {
    let folder = TempDir::new().unwrap();
    let out = trained("sequence_classification", folder.path());
    let ask = |arguments: &[&str], lines: &[u8]| {
        let mut command = at_root();
        command.args(["predict", &out, "-"]).args(arguments).write_stdin(lines);
        command.assert()
    };
    let lines = b"{\"text\": \"rain\"}\n{\"text\": 3}\nplain\n";
    let wrong = ask(&[], lines).code(1).stderr(contains("standard input:2, field `text`"));
    let answers = String::from_utf8(wrong.get_output().stdout.clone()).unwrap();
    assert!(answers.lines().count() == 1 && answers.contains("\"text\":\"rain\""), "{answers}");

    let bytes = b"rain\nr\xe9sum\xe9\nsun\n";
    let wrong = ask(&[], bytes).code(1).stderr(contains("standard input:2: expected UTF-8 text"));
    wrong.stdout(contains("\"text\":\"rain\""));
    let skipped = ask(&["--set", "data.malformed=Skip"], bytes).success();
    skipped.stderr(contains("skipped 1 malformed").and(contains("2 answers")));

    let long = "rain ".repeat(2000);
    let cut = ask(&[], format!("{long}\n").as_bytes()).success();
    cut.stderr(contains("cut off at `data.max_length`: 1 input, "));

    // A line without an end does not fill the memory.
    let endless = [&b"rain\n"[..], &vec![b'x'; 20 << 20], b"\nsun\n"].concat();
    let wrong = ask(&[], &endless).code(1).stderr(contains("standard input:2: expected a line of at most"));
    wrong.stdout(contains("\"text\":\"rain\""));
    let skipped = ask(&["--set", "data.malformed=Skip"], &endless).success();
    skipped.stderr(contains("skipped 1 malformed").and(contains("2 answers")));
}

#[test]
fn lines_are_what_the_task_reads() {
    let folder = TempDir::new().unwrap();
    let out = trained("token_classification", folder.path());
    let ask = |arguments: &[&str], lines: &str| {
        let mut command = at_root();
        command.args(["predict", &out, "-"]).args(arguments).write_stdin(lines.to_owned());
        command.assert()
    };
    let words = ask(&[], "Maria met  Peter\n").success().stdout(contains("[\"Maria\",\"met\",\"Peter\"]"));
    words.stderr(contains("1 answer\n"));
    ask(&["--limit", "1"], "one\ntwo\nthree\n").success().stderr(contains("1 answer\n"));
    let wrong = ask(&[], "{\"words\": 3}\n").code(1);
    wrong.stderr(contains("standard input:1, field `words`: expected a list of texts"));
    ask(&["--set", "data.malformed=Skip"], "{\nMaria\n").success().stderr(contains("skipped 1 malformed"));
    ask(&["--data", "x"], "").code(2).stderr(contains("cannot be used with"));
}

/// Files too: what comes before a malformed record is answered, and what is skipped is said.
#[test]
fn a_malformed_record_ends_the_answers_and_not_those_before_it() {
    let folder = TempDir::new().unwrap();
    let out = trained("sequence_classification", folder.path());
    let data = folder.path().join("asked.jsonl");
    std::fs::write(&data, "{\"text\": \"rain\"}\n{\"text\": 3}\n{\n{\"text\": \"sun\"}\n").unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = at_root();
        command.args(["predict", &out, "--data", data.to_str().unwrap(), "--set", "data.format=Jsonl"]);
        command.args(arguments).assert()
    };
    let answers = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap().lines().count();
    let wrong = ask(&[]).code(1).stderr(contains("asked.jsonl:2, field `text`"));
    assert_eq!(answers(&wrong.get_output().stdout), 1);
    let skipped = ask(&["--set", "data.malformed=Skip"]).success();
    assert_eq!(answers(&skipped.get_output().stdout), 2);
    let said =
        contains("skipped 2 malformed records").and(contains("asked.jsonl:3")).and(contains("2 answers"));
    skipped.stderr(said);
    // Nothing is read beyond the limit.
    ask(&["--limit", "1"]).success().stderr(contains("1 answer\n"));
}
