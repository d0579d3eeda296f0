//! `firebrick generate` on standard input: texts as the prompts come.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use predicates::prelude::*;
use predicates::str::contains;

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
